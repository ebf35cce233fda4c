"""Compiled code of all engines: integers and values that they share, GPU kernels, the CPU engine.

This folder is only ever imported as implicit_conv.kernels, through the relative link
implicit_conv/kernels -> ../kernels, because the import name `kernels` belongs to another package.
"""
