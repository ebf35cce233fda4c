"""From the text of a kernel to Python functions over arrays of 32 lanes."""
