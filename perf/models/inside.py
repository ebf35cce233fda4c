"""How long convolutions take inside a model, where what they read is not cached as it is alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

# Operator: the place of its x, before its filter, among its arguments.
OPERATORS = {"convolution": 0, "convolution_backward": 1}


def _watch(watch: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """Run an operator of torch; note how long it took if it is of `OPERATORS`."""
    name = function.overloadpacket.__name__
    start = time.perf_counter()
    y = function(*args, **(kwargs or {}))
    seconds = time.perf_counter() - start
    if name in OPERATORS:
        x, w = args[OPERATORS[name] :][:2]
        watch.seen.append(({"operator": name, "x": [*x.shape], "w": [*w.shape]}, seconds))
    return y


Watch: Any = type("Watch", (TorchDispatchMode,), {"__torch_dispatch__": _watch})


def convolutions(function: Callable[[], Any]) -> list[tuple[dict[str, Any], float]]:
    """The convolutions and their gradients that a call of a function computes, in order: each with
    its shapes, and the seconds that it took.
    """
    watch = Watch()
    watch.seen = []
    with watch:
        function()
    return list(watch.seen)
