"""Compiled code of filters of images; only what makes code imports it."""
