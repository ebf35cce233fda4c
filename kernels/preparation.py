"""Names of `implicit_conv.process.preparation`, for importers that have not moved yet."""

from implicit_conv.process.preparation import (
    COMPILING,
    checkpoint,
    first,
    imports,
    prepare,
    prepare_later,
    prepares_later,
)

__all__ = [
    "COMPILING",
    "checkpoint",
    "first",
    "imports",
    "prepare",
    "prepare_later",
    "prepares_later",
]
