"""The names of the compilers of CPU kernels."""

TRANSLATOR, NJIT = COMPILERS = "translator", "njit"  # ours, and Numba's, which is the reference
