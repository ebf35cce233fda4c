"""Depthwise convolution over planes: the vector lanes are pixels of one channel."""
