"""The simulator: a twin for each hook, so that a kernel's source runs without a GPU.

A warp is one Python thread and its 32 lanes are one numpy vector, so a branch that depends on the
lane is an error rather than a divergence. Shared memory is one byte array per block at absolute
addresses; copies arrive late; every access is checked against what the barriers have ordered.
"""
