"""Everything that calls the CUDA driver: devices, tensor maps, transfers, kernels."""
