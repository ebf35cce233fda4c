"""The command line: `implicit-conv` and its commands.

The top floor: it may import all rooms, and none imports it.
"""
