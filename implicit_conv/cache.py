"""Names of `implicit_conv.process.cache`, for importers that have not moved yet."""

from implicit_conv.process.cache import (
    ENGINES,
    PREPARED,
    SIZED,
    SIZES,
    cached_property,
    keep_call,
)

__all__ = ["ENGINES", "PREPARED", "SIZED", "SIZES", "cached_property", "keep_call"]
