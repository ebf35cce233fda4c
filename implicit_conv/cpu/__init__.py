"""The CPU engine's host side; its kernels are in implicit_conv.kernels.cpu.

engine     a request answered: candidates, best first; explains, packs, runs
planner    METHODS, and the candidates that they make of a problem
candidate  Method and Candidate: how a convolution is computed, and what that costs
methods    one method a file: costs, refusals, tilings, estimate, arguments, loads, words
tiling     load tiles, threads, division of the work;  costs: what all methods share, in cycles
call       a candidate bound to the strides of arrays, ready to run
packed     filters packed for many calls
views      a problem as a method sees it
explain    an engine in words;  record: the loads that a debug build executes
"""
