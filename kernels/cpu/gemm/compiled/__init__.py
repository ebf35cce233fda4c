"""Compiled code of the GEMM; only what makes code imports it."""
