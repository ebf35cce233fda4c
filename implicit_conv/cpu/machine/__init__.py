"""The CPU: what it can do, how fast it is, and what compiles for it.

The lowest floor of the CPU's engine; it imports kernels and process alone.
"""
