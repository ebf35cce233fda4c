"""What is asked: words parsed into a `Problem`, its schedule, and the reference that checks it.

It needs numpy alone, and of kernels the schedule and its numbers. Everybody may import it.
"""
