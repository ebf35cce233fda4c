"""Compiled code of loads and stores of tiles; only what makes code imports it."""
