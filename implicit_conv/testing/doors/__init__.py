"""Random programs of the doors to other libraries, whose results these libraries check.

A door is a module here: `draw` makes a program of random choices, `REQUIRED` maps the modules that
its programs import to the packages that have them, and a run is to have several programs with each
of `KINDS` of calls, and of `WAYS` that these take. A program is a frozen value whose repr is
Python code that makes it.
"""
