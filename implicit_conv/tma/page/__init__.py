"""The explorer: a page in which a copy is drawn while its fields are changed.

Rules and the schedule are those of Python, printed as JavaScript; the commands import it.
"""
