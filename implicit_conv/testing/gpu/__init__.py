"""Checks that need a GPU: results, copies byte by byte, and arrays of other libraries.

``python -m implicit_conv.testing.gpu.hardware`` runs them.
"""
