"""Depthwise convolution and groups of a few channels: vector lanes are channels.

In reading order: `layout` has sizes and cuts rows into register tiles, `operator` has the parts of
a launch. What is compiled: `fprop` is the work item and packs filters, `microkernel` its innermost
loops.
"""
