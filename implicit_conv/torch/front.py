"""The function that torch's dispatcher calls for convolutions: known ones run without a Python
frame, by `TorchCalls`; all others are those of a function of Python.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from implicit_conv.operators.programs import TORCH_FUNCTIONS, TorchCalls, differing, offset_of
from implicit_conv.process.cache import TABLES
from implicit_conv.process.preparation import prepare
from implicit_conv.settings import current, process_settings
from implicit_conv.torch.openmp import library_of_torch
from implicit_conv.torch.steps import Step


class Front(TorchCalls):
    """Known calls, which have a step with a program. Its function is registered for
    ``aten::convolution`` and ``aten::_convolution``.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._modes, self._numbers = dict[tuple[str, str], int](), itertools.count(1)
        TABLES.append(self)

    def follow(self, precision: str, choose: str) -> None:
        """From now on, calls are those of this precision and choice."""
        self.set_mode(self._mode(precision, choose))

    def _mode(self, precision: str, choose: str) -> int:
        return self._modes.setdefault((precision, choose), next(self._numbers))

    def keep(self, key: tuple[Any, ...], step: Step, arguments: Sequence[Any]) -> None:
        """Have calls like this one, which ran the program of a step that is kept under `key`, run
        without Python: from the second such call on, since settings may be those of one block.
        """
        config = current()
        if step.seen != id(config):
            step.seen = id(config)
            return
        known = step.known_call(arguments[3]) if config.key == key[-1][0] else None
        described = () if known is None else self.described(*arguments)
        if known is not None and described:
            window, (_, threads, mkldnn, choose, exact) = key[-2:]
            mode = self._mode(window.precision, choose)
            state = id(config), threads, int(mkldnn), int(exact), mode
            self.add((*state, *described), known, (step, config))


def make_front(python: Callable[..., Any]) -> Front | None:
    """The front end of a function that computes ``aten::convolution``; None where it is not sure
    how objects of this Python and this torch are stored.
    """
    functions, handle = _functions(), _handle_offset()
    new = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", None)
    if functions is None or handle is None or new is None or differing():
        return None
    scopes, own_scope = process_settings()
    objects = {
        "python": python,
        "mkldnn": torch._C._get_mkldnn_enabled,
        "deterministic": torch._C._get_deterministic_algorithms,
        "new": new,
        "config": "config",
        "scopes": scopes,
        "own_scope": own_scope,
        "true": True,
        "false": False,
        "none": None,
        "list": list,
        "int": int,
        "tensor": torch.Tensor,
        "parameter": torch.nn.Parameter,
    }
    return prepare(Front, objects, functions, handle)


def _functions() -> dict[str, int] | None:
    """The addresses of functions of torch's stable C interface."""
    library = library_of_torch()
    if library is None or not all(hasattr(library, name) for name in TORCH_FUNCTIONS):
        return None
    found = {}
    for name in TORCH_FUNCTIONS:
        pointer = ctypes.cast(getattr(library, name), ctypes.c_void_p)
        found[name] = pointer.value or 0
    return found


def _handle_offset() -> int | None:
    """Where the object of a tensor has its handle, an at::Tensor: the pointer to its
    implementation.
    """
    tensors = [torch.empty(size) for size in range(1, 4)]
    tensors += [torch.nn.Parameter(tensor) for tensor in tensors]
    return offset_of(tensors, [tensor._cdata for tensor in tensors])
