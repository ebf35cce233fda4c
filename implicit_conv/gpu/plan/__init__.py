"""Which GPU kernel computes a problem, and with which tensor maps: no GPU is needed here.

It imports what is known of targets and arrays; `run` imports it.
"""
