"""Folds of products: the scatter that ends a transposed convolution made of one GEMM.

`layout` has sizes, `operator` says which parts a launch needs, and `compiled` adds.
"""
