"""GPU kernels in Numba-CUDA, and hooks for their PTX instructions."""
