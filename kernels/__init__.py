"""Device side: integers and values that every engine shares, GPU kernels, and the CPU engine."""
