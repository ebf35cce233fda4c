"""Checks of single tensor copies on a GPU: their bytes, and which maps the driver accepts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from implicit_conv import tma
from implicit_conv.errors import DriverError
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.encode import encode, encode_arguments
from implicit_conv.gpu.cuda.kernel import run_dump
from implicit_conv.gpu.cuda.transfer import send
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu.call import Limits, pack
from implicit_conv.kernels.gpu.targets import target_name
from implicit_conv.ptx.targets import lacking
from implicit_conv.testing.gpu.device_memory import fetch, poisoned
from implicit_conv.testing.gpu.problems import Copy, dump_call, example_copies
from implicit_conv.tma.maps.ptx import INFIXES

SPOILED: tuple[tuple[str, Any], ...] = (  # arguments that break a rule of tensor maps
    ("channelsPerPixel", 257),
    ("channelsPerPixel", 4),
    ("pixelsPerColumn", 0),
    ("pixelsPerColumn", 1025),
    ("elementStrides", (1, 9, 1, 1)),
    ("pixelBoxLowerCorner", (-129, 0)),
    ("pixelBoxUpperCorner", (-8, -8)),
    ("globalStrides", (130, 910, 4550)),
)


def copies_on(cc: Sequence[Any]) -> list[Copy]:
    """The example copies that a compute capability has an instruction for."""
    target = target_name(cc)
    return [copy for copy in example_copies() if not lacking(INFIXES[copy.mode], False, target)]


def check_copies() -> Iterator[str]:
    """Lines that report copies whose bytes differ from those that implicit_conv.tma computes."""
    arch = driver.current_arch()
    for copy in copies_on(arch.cc):
        memory, x = copy.tensor(np.random.default_rng(0))
        operands = copy.coords, 0, copy.offsets, copy.halo, copy.offset
        expected = tma.smem_image(copy.map, x, *operands).bytes
        print(copy.name, flush=True)
        source, y = send(memory), poisoned(expected.size)
        try:
            encoded = encode(copy.at(int(source.pointer)), arch.cc)
        except DriverError as error:
            yield f"{copy.name}: {error}"
            continue
        call = dump_call(copy, int(y.pointer), expected.size)
        nothing = Geometry(*[0] * len(Geometry._fields))
        packed = pack(encoded, None, call, nothing, Limits(0.0, 0.0))
        run_dump(copy.mode, arch, packed, expected.size)
        wrong = np.flatnonzero(fetch(y, expected.shape, np.uint8) != expected)
        if wrong.size:
            yield f"{copy.name}: {wrong.size} bytes wrong, the first at {wrong[0]}"


def check_maps() -> Iterator[str]:
    """Lines that report correct maps that the driver refuses; it prints all verdicts."""
    memory = send(np.zeros(1 << 16, np.uint8))
    for copy in copies_on(driver.current_arch().cc):
        given = copy.at(int(memory.pointer)).arguments
        for change in (None, *SPOILED):
            if change is not None and change[0] not in given:
                continue
            arguments = given if change is None else {**given, change[0]: change[1]}
            ours = not any(f.severity == "error" for f in tma.lint(arguments))
            theirs = _accepted(arguments)
            print(f"{copy.name}, {change or 'as it is'}: driver {theirs}, linter {ours}")
            if change is None and not theirs:
                yield f"{copy.name}: refused by the driver"


def _accepted(arguments: dict[str, Any]) -> bool:
    try:
        encode_arguments(arguments)
    except DriverError:
        return False
    return True
