"""The explorer: a page in which a copy is drawn while its fields are changed.

The scripts repeat rules of `check`; a test compares both.
"""
