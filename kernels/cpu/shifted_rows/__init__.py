"""Depthwise convolution of planes in place: rows of x are loaded once and shifted in registers.

In reading order: `layout`, `operator`, and `compiled`, which has the work item and the microkernel.
"""
