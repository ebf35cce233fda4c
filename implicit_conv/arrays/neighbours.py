"""Names of a neighbour's module that a door does not have: they are the neighbour's own."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from implicit_conv.errors import nearest


def own_name(door: str, module: ModuleType, name: str) -> Any:
    """What `module`, such as scipy.ndimage, has under a public name that the module `door` lacks.

    Raises
    ------
    AttributeError
        `module` does not have it, either.
    """
    if name in module.__all__:
        return getattr(module, name)
    raise AttributeError(
        f"module {door!r} has no attribute {name!r}, and neither has {module.__name__}"
        f"{nearest(name, module.__all__)}"
    )
