"""Checks of the GPU engine: on a GPU, in the interpreter of PTX, and by the assembler."""
