"""Winograd F(m x m, R x S): transforms around implicit GEMM's microkernels.

In reading order: `layout` has sizes, `operator` the parts of a launch. What is compiled: `fprop` is
the work item and packs filters, `transforms` the code of the three transforms.
"""
