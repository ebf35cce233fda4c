"""The CPU engine's host side; its kernels are in implicit_conv.kernels.cpu.

From the lowest floor up: `machine`, `run`, `candidates`, `methods`, `plan`, `engines`; each says
what belongs there. It imports kernels, arrays and problem; operators and tools import it.
"""
