"""Tensor maps: their fields, limits and encodings, and what the driver accepts.

The lowest floor of `tma`; the GPU's engine makes its maps here too.
"""
