"""Folds of products: the scatter that ends a transposed convolution made of one GEMM.

`operator` says which parts and memory a launch needs, and `compiled` adds.
"""
