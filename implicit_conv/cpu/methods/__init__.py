"""The methods: each file holds one way to compute a convolution, in the same order of parts.

Mapping, costs, the class (candidates, sizes, kernels, packed order, strides, operands, loads,
words), then refusals, views, tilings and the estimate.
"""
