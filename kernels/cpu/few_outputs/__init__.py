"""fprop by dot products, for few outputs: vector lanes are channels.

In reading order: `layout`, `operator`, and `compiled`, which has the work item and the microkernel.
"""
