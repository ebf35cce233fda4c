"""Compiled code of the runtime; only what makes code imports it."""
