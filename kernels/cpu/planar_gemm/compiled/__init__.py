"""Compiled code of fprop over planes; only what makes code imports it."""
