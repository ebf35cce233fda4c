"""The planner: all candidates of all methods, sorted; tuning, and explaining the choice.

It alone imports methods; engines import it.
"""
