"""Weight gradients: dw[k, c, r, s], summed over the pixels of dy and of shifted views of x.

In reading order: `layout` has sizes and the tree of partial sums, `operator` the parts of a launch.
What is compiled: `wgrad` is the work item, which `work` fetches, `panels` loads dy and x,
`microkernel` multiplies them, `sums` adds and stores, `addresses` says where in dw; `lanes` is the
work item of few channels, and `windows` reads both in place for depthwise filters. `planes` is the
work item of depthwise filters over planes, with `plane_sums`, whose lanes are pixels.
"""
