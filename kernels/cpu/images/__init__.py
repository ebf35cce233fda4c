"""Filters of images: sums of windows of rows, of one pass or of two that are joined.

Each sum has a fixed order, which has the bits of a plain loop over the taps where products are
rounded before they are added. `layout` says what callers know, `operator` starts launches.
"""
