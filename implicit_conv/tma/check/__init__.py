"""What is wrong: rules for maps, guesses of slips, and kernels run in the interpreter of PTX.

It imports maps, what they do, and pictures of it.
"""
