"""Depthwise convolution over planes: vector lanes are pixels of one channel."""
