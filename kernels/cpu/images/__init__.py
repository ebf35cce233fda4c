"""Filters of images: sums of windows of rows, of one pass or of two that are joined.

Each sum has a fixed order, which has the bits of a plain loop over the taps where products are
rounded before they are added. In reading order: `layout` says what callers know, `operator` starts
launches. What is compiled: `tiles` cuts images and loads rows, of filters of `rank` too, `rows`
takes them through the passes, `sums` adds products, `running` has running means, and `elements`
converts rows while they are loaded and stored.
"""
