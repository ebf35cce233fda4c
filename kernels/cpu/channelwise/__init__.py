"""Operators on each channel of an image by itself, whose lanes are channels: windows and pairs.

Elements have the dtypes of floats; those of 16 bits are widened, and results are rounded once. In
reading order: `layout` says what work items read, `operator` makes launches. What is compiled:
`vectors` has the vectors of a pixel, `windows` sums and maxima, `pairs` products and sums of two.
"""
