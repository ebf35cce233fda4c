"""Filters of images whose sums are added in a fixed order: float64, without fused multiply-adds."""
