"""The CPU engine's host side; its kernels are in implicit_conv.kernels.cpu.

engine     CpuEngine: the candidates for a request, which explains, packs and runs
planner    METHODS, and the candidates of a problem in the order of their estimates
candidate  Method, Candidate and Request: how a convolution is computed, and what it costs
kernel_method  KernelMethod: what methods with compiled kernels have in common
serves     the dtypes, precisions and epilogues that a method declares
methods    one file per method: costs, rules, tilings, estimate, arguments, loads, words
tiling     load tiles, threads and the division of the work
costs      the cycles of operations that several methods have in common
call       a candidate bound to the strides of arrays, ready to run
packed     filters that are packed for many calls
views      the problem as a method sees it: other dtypes, merged axes
words      phrases of explain that several methods use
explain    the text of Plan.explain
record     the loads that a debug build executes
"""
