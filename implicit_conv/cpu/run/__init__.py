"""A chosen candidate bound to arrays: its packed filter, its scratch memory, its launch.

It imports the machine; candidates and all above import it.
"""
