"""Exceptions; their messages give the rule, the numbers and a way out."""

QUOTED = 80  # characters that a message quotes of another library's error at most


class ShapeError(ValueError):
    """Shapes, strides, padding or layouts do not match."""


class DTypeError(TypeError):
    """A dtype is not supported, or two dtypes do not match."""


class PlanError(ValueError):
    """An algorithm, precision or device does not support the problem."""


class UsageError(ValueError):
    """Options of a command are missing, invalid or do not match."""


class DriverError(RuntimeError):
    """The CUDA driver refused a call, or a kernel failed."""


class TileError(RuntimeError):
    """A tile could not be read, computed or written; those before it are written."""
