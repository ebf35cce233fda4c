"""Depthwise convolution over planes: vector lanes are pixels of one channel.

In reading order: `layout`, `operator`, and `compiled`, which has the work item, the microkernels
and the packing of filters.
"""
