"""What users can do wrong, as exceptions that carry the rule, the numbers and the way out."""


class ShapeError(ValueError):
    """Sizes, strides, padding or layouts that do not fit together."""


class DTypeError(TypeError):
    """A dtype that is not served, or two that do not go together."""


class PlanError(ValueError):
    """An algorithm, precision or device that cannot serve the problem."""


class UsageError(ValueError):
    """Options of a command that are missing or do not go together."""


class DriverError(RuntimeError):
    """A call that the CUDA driver refused, or a kernel that failed."""
