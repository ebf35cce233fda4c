"""The simulator: a twin of each hook, so that the source of a kernel runs without a GPU.

A warp is one Python thread and its 32 lanes are one numpy vector, so a branch that depends on the
lane is an error and not a divergence. Shared memory is one byte array per block at absolute
addresses. Copies arrive late, and every access is checked against the order that barriers impose.
"""
