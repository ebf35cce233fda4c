"""The public functions: they parse, ask for a plan, and keep calls that are repeated.

They import both engines and all that is below; doors, the tests that users run, and tools import
them.
"""
