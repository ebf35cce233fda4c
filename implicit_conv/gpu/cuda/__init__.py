"""What talks to the CUDA driver: devices, tensor maps, transfers, kernels."""
