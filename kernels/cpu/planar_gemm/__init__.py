"""Implicit GEMM over planes: vector lanes are pixels of a row, filters are read in place.

In reading order: `layout` has sizes, `operator` the parts of a launch. What is compiled: `fprop` is
the work item, `microkernel` its innermost loop; `flat` is the work item where all pixels of a tile
are one row, as with a 1x1 filter.
"""
