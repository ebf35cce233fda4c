"""Implicit GEMM: the schedule itself, vector lanes are filters.

In reading order: `layout` has sizes and the ways to pack a filter, `operator` the parts of a
launch. What is compiled: `fprop` is the work item, `microkernel` its innermost loop, with `dots`,
`matrices` and `amx` for instructions that multiply several channels or pixels; `panels` packs
filters, by `pack_taps` for each way that a filter lies in memory, and by `words` for dot products;
`phase_packing` and `phase_panels` pack those of all stride phases at once.
Loads and stores are those of `kernels/cpu/tile`.
"""
