"""Checks of the GPU engine: on a GPU, in the simulator, and by the assembler."""
