"""The planner: all candidates of all methods, sorted; tuning, and explaining the choice.

It alone imports methods that have kernels; a composite one asks it for the choices of its parts.
Engines import it.
"""
