"""The CPU: what it can do, how fast it is, what compiles for it, and times of calls on it.

The lowest floor of the CPU's engine; it imports kernels and process alone.
"""
