"""Depthwise convolution and groups of a few channels: vector lanes are channels."""
