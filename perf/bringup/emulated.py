"""The device of a dress rehearsal: the PTX interpreter in place of a driver."""

from __future__ import annotations

import platform
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv import ptx
from implicit_conv.tma.check.interpreted import interpreted_map
from perf.bringup import watchdog
from perf.bringup.kit import Image, Kit, Launch

Array = NDArray[Any]
POLLS = 4  # failed polls of a wait; the interpreter lets a poll fail where nothing else can move


def encoded(memory: ptx.Memory, arguments: dict[str, Any]) -> bytes:
    """128 bytes that stand for the tensor map of a cuTensorMapEncode call with these arguments."""
    map = interpreted_map(arguments, 0)
    return memory.encode(replace(map, address=arguments["globalAddress"]))


class Interpreter:
    """The PTX interpreter."""

    timed = False  # it has no clock

    def __init__(self, kit: Kit) -> None:
        self.kit = kit
        self.memory = ptx.Memory()
        self.kernels: dict[str, Any] = {}

    def facts(self) -> list[str]:
        """Versions."""
        return [
            f"PTX interpreter as {self.kit.about['target']}, Python {platform.python_version()}, "
            f"numpy {np.__version__}"
        ]

    def load(self, key: str, image: Image) -> list[str]:
        """Parse a kernel."""
        if key not in self.kernels:
            text = self.kit.files[f"ptx/{key}"].decode()
            text = watchdog.with_watchdog(text, POLLS) if image.watchdog else text
            self.kernels[key] = ptx.parse(text)
        return [f"{self.kernels[key].parameter_bytes} bytes of parameters"]

    def clear(self) -> None:
        """Forget all arrays and maps."""
        self.memory = ptx.Memory()

    def put(self, array: Array, offset: int) -> int:
        """The address of a copy of the array's bytes."""
        return self.memory.put(array.copy(), offset)

    def get(self, place: int, size: int) -> Array:
        """The bytes at an address."""
        return self.memory.bytes(place, size)

    def encode(self, arguments: dict[str, Any]) -> bytes:
        """128 bytes that stand for the tensor map."""
        return encoded(self.memory, arguments)

    def run(self, launch: Launch, blob: bytes) -> list[str]:
        """Run a launch to its end; what its watchdog recorded."""
        image = self.kit.images[launch.image]
        self.load(launch.image, image)
        done = ptx.Launch(
            self.kernels[launch.image],
            parameters=blob,
            memory=self.memory,
            grid=(launch.grid, 1, 1),
            block=(image.threads, 1, 1),
            shared_bytes=launch.shared_bytes,
            names=launch.regions,
        ).run()
        if not image.watchdog:
            return []
        address = int(done.variables[watchdog.NAME][0])
        table = self.memory.bytes(address, watchdog.TABLE_BYTES).copy()
        return watchdog.records(table, launch.regions)
