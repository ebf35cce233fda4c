"""Input gradients of depthwise convolutions with a stride: all stride phases in one pass.

In reading order: `layout`, `operator`, and in `compiled` the work item (`dgrad`) and `microkernel`.
"""
