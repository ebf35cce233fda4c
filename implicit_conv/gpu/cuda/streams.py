"""Streams of arrays: whose work an array is part of, and the order of a launch among them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.arrays import LEGACY_STREAM, Seen


def stream_of(array: Seen) -> int | None:
    """The stream whose work an array is part of, 0 for the default; None if nobody says."""
    stream = array.stream
    if stream == "torch":
        torch, device = sys.modules["torch"], array.kind[3]
        try:
            return int(torch._C._cuda_getCurrentRawStream(device))  # in a third of the time
        except AttributeError:
            return int(torch.cuda.current_stream(device).cuda_stream)
    if stream == "cupy":
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return 0 if stream == LEGACY_STREAM else stream  # type: ignore[return-value]


@contextmanager
def among(arrays: Sequence[Seen | None], stream: int) -> Iterator[None]:
    """Work that is put on `stream` in this block begins after that of the streams of `arrays` so
    far, and ends before their work to come. While `stream` is captured into a graph, which has no
    other streams, it is on its own.
    """
    others = {stream_of(array) for array in arrays if array} - {None, stream}
    if others and int(driver.call("cuStreamIsCapturing", stream)):
        others.clear()
    for other in others:
        _wait(stream, other)
    yield
    for other in others:
        _wait(other, stream)


def _wait(stream: int | None, other: int | None) -> None:
    """Let `stream` wait for the work of `other` so far."""
    untimed = driver.bindings().CUevent_flags.CU_EVENT_DISABLE_TIMING
    event = driver.call("cuEventCreate", untimed)
    try:
        driver.call("cuEventRecord", event, other)
        driver.call("cuStreamWaitEvent", stream, event, 0)
    finally:
        driver.call("cuEventDestroy", event)  # the driver keeps it until all have waited
