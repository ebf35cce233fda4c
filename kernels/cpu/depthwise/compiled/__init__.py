"""Compiled code of depthwise kernels; only what makes code imports it."""
