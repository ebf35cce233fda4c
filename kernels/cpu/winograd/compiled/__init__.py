"""Compiled code of Winograd; only what makes code imports it."""
