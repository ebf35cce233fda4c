"""The planner: all candidates of all methods, sorted; tuning, and explaining the choice.

It alone imports methods (those of `input_gradients` when a call needs them); engines import it.
"""
