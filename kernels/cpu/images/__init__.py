"""Filters of images whose sums are added in a fixed order, without fused multiply-adds."""
