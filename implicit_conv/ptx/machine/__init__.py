"""What runs: warps, their lanes and blocks of threads, and the instructions that end at once."""
