"""For doors: imports and first calls that a fork in another thread waits for."""

from implicit_conv.kernels.preparation import checkpoint, first, imported, imports, prepare

__all__ = ["checkpoint", "first", "imported", "imports", "prepare"]
