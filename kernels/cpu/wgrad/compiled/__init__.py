"""Compiled code of filter gradients; only what makes code imports it."""
