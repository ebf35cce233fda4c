"""Filters of images whose sums are added in a fixed order, without fused multiply-adds.

`layout` says what callers know of them, and `compiled` adds.
"""
