"""Random programs of the doors to other libraries, whose results these libraries check.

A door is a module here: `draw` makes a program of random choices, and `REQUIRED` names the packages
that its programs import. A program is a frozen value whose repr is Python code that makes it.
"""
