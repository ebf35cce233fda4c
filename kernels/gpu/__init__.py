"""GPU kernels (Numba-CUDA) and their PTX instructions, one function each."""
