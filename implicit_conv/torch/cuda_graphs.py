"""Graphs of CUDA: all that a compiled graph launches, launched again by one call.

A graph of CUDA reads and writes the addresses that it was captured with. Parameters stay where they
are, and are read there, so that writes to them are followed; all else is copied in and out. A graph
does not keep their memory: it is dropped when that is freed, and runs for their addresses alone.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from implicit_conv.settings import current
from implicit_conv.torch import cuda
from implicit_conv.torch.steps import LOG

KEPT = 16  # graphs of one function; each has memory of its own
SEEN, REFUSED = "seen", "refused"  # what is known of calls that no graph computes


def stays(node: Node) -> bool:
    """Whether the tensor of a placeholder is a parameter or a buffer, by what Dynamo says."""
    given = node.meta.get("tensor_dict") or {}
    value = node.meta.get("example_value")
    return bool(given.get("_dynamo_static_input_type")) or isinstance(value, torch.nn.Parameter)


class Replayed:
    """A function of tensors that is captured when tensors of one kind come for the second time.

    The first call measures which kernels run. A call whose results share memory, or that cannot be
    captured, runs as it is, and a warning says so.
    """

    def __init__(self, run: Callable[..., Any], stays: Sequence[bool]) -> None:
        """`stays` says of each argument whether it is where it was as long as it is the same."""
        self._run, self._stays = run, stays
        self._found: dict[Any, Any] = {}
        self._lock = threading.RLock()

    def __call__(self, *given: Any) -> Any:
        """The results, in memory of their own."""
        devices = {each.device for each in given if isinstance(each, torch.Tensor)}
        device, *others = devices
        if others or device.type != "cuda" or torch.cuda.is_current_stream_capturing():
            return self._run(*given)
        with self._lock, torch.cuda.device(device):
            key = self._key(given, device)
            found = self._found.get(key)
            if found is None:
                self._keep(key, SEEN)
            elif found is SEEN:
                found = self._captured(key, given)
                self._keep(key, found)
            return self._run(*given) if found in (None, REFUSED) else found(given)

    def _key(self, given: Sequence[Any], device: Any) -> tuple[Any, ...]:
        """What a graph depends on. Work of two streams must not meet in its memory."""
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        kinds = [
            _kind(each, stays) if isinstance(each, torch.Tensor) else each
            for each, stays in zip(given, self._stays, strict=True)
        ]
        return stream, current().key, cuda.flags(), *kinds

    def _keep(self, key: Any, found: Any) -> None:
        while len(self._found) >= KEPT:
            oldest, *_ = self._found
            self._found.pop(oldest, None)  # which another thread's freed memory may have dropped
        self._found[key] = found

    def _captured(self, key: Any, given: Sequence[Any]) -> Any:
        """A graph for such arguments, or REFUSED."""
        try:
            return Graph(self._run, given, self._stays, partial(self._found.pop, key))
        except RuntimeError as error:
            LOG.warning("no graph of CUDA is captured: %s", error)
        return REFUSED


def _kind(tensor: Any, stays: bool) -> tuple[Any, ...]:
    address = tensor.data_ptr() if stays else 0
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, address


class Graph:
    """A captured call of a function."""

    def __init__(
        self,
        run: Callable[..., Any],
        given: Sequence[Any],
        stays: Sequence[bool],
        freed: Callable[[Any], Any],
    ) -> None:
        """`freed` is called once memory is freed that the graph reads of its arguments that stay.

        Raises
        ------
        RuntimeError
            The call does what no graph can hold, or its results share memory.
        """
        of = [number for number, each in enumerate(given) if isinstance(each, torch.Tensor)]
        self._copies = {number: like(given[number]) for number in of if not stays[number]}
        read = [self._copies.get(number, each) for number, each in enumerate(given)]
        self._replay, self._results = captured(run, read)
        results = [each for each in self._results if isinstance(each, torch.Tensor)]
        axes = (axis for each in results for axis in zip(each.shape, each.stride(), strict=True))
        if any(size > 1 and not step for size, step in axes):
            raise RuntimeError("a result of the graph has several elements at one address")
        written, known = _places(results), {*_places([read[number] for number in of])}
        if len({*written}) != len(written) or known & {*written}:
            raise RuntimeError("results of the graph share memory with each other or with inputs")
        memory = [given[number].untyped_storage() for number in of if stays[number]]
        self._memory = [weakref.ref(each, freed) for each in memory]

    def __call__(self, given: Sequence[Any]) -> Any:
        """The results for arguments of the same kind."""
        for number, copy in self._copies.items():
            copy.copy_(given[number])
        self._replay()
        copies = (like(y) if isinstance(y, torch.Tensor) else y for y in self._results)
        return type(self._results)(copies)


def _places(tensors: Sequence[Any]) -> list[int]:
    """Where the memory of tensors begins, of those that have some."""
    return [each.untyped_storage().data_ptr() for each in tensors if each.numel()]


def like(tensor: Any) -> Any:
    """A copy with the same strides."""
    sizes = tensor.shape, tensor.stride()
    made = torch.empty_strided(*sizes, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def captured(run: Callable[..., Any], given: Sequence[Any]) -> tuple[Callable[[], Any], Any]:
    """(function that computes the results again, the results). Other threads, such as those that
    load data, may allocate and wait meanwhile: in the "global" mode of torch they would fail.
    """
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        results = run(*given)
    return graph.replay, results
