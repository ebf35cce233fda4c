"""Random programs of the doors to other libraries, whose results these libraries check.

A door is a module here: `draw` makes a program of random choices, and `REQUIRED` maps the modules
that its programs import to the packages that have them. A program is a frozen value whose repr is
Python code that makes it.
"""
