"""Winograd F(m x m, 3x3): transforms around implicit GEMM's microkernels."""
