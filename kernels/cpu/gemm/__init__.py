"""Implicit GEMM: the schedule itself, vector lanes are filters."""
