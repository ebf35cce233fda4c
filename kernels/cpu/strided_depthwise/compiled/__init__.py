"""Compiled code of depthwise input gradients; only what makes code imports it."""
