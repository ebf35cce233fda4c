"""``ptx check --map FILE``: kernels that take tensor maps, run from a shell."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from implicit_conv.ptx.commands import MAP, SMALL
from implicit_conv.ptx.errors import printable
from implicit_conv.tma.check.kernel_check import MapArgument, check_kernel
from implicit_conv.tma.check.linter import constructor_arguments, kind_of_map
from implicit_conv.tma.maps.driver import ARGUMENTS, describe_arguments, with_integers
from implicit_conv.tma.maps.json_maps import read_objects
from implicit_conv.tma.maps.limits import TensorMapError
from implicit_conv.tma.maps.maps import TensorMap
from implicit_conv.tma.maps.schema import OPERANDS

MOST_BYTES = 1 << 30  # of a tensor


def check_with_maps(text: str, options: argparse.Namespace) -> int:
    """Run a kernel under several schedules by check_kernel; 1 if one of them finds something."""
    source, objects = read_objects(options.map)
    wanted = sum(argument is MAP for argument in options.arguments)
    if wanted != len(objects):
        noun = "map" if len(objects) == 1 else "maps"
        raise ValueError(
            f"{source} has {len(objects)} {noun}, but {wanted} of the arguments are 'map'; name "
            "each map once, in the order of the kernel's parameters"
        )
    maps = [_map(given, f"{source}, map {n}") for n, given in enumerate(objects, 1)]
    first: list[bytes] = []
    for seed in range(options.seeds):
        left = iter(maps)
        given = [
            MapArgument(map := next(left), _tensor(map)) if a is MAP else _copied(a)
            for a in options.arguments
        ]
        report = check_kernel(
            text,
            options.grid,
            options.block,
            given,
            options.target,
            seed=seed,
            shared_bytes=options.shared,
            shared_alignment=options.shared_alignment,
            entry=options.entry,
            seconds=options.seconds,
            unfenced_barriers=options.unfenced_barriers,
        )
        arrays = [a.array if isinstance(a, MapArgument) else a for a in given]
        held = [a.tobytes() for a in arrays if isinstance(a, np.ndarray)]
        first = first or held
        if report.problems or held != first:
            print(printable(f"seed {seed}:\n{report}"))
            if held != first:
                print("the result depends on the schedule: it differs from that of seed 0")
            return 1
        if seed == 0:
            print(printable(str(report)))
    print(f"{options.seeds} schedules: no error, and the same result in all")
    return 0


def _map(given: Mapping[str, Any], where: str) -> TensorMap:
    """The map of an object; a ValueError lists the rules that it breaks."""
    named = {key: value for key, value in given.items() if key not in (*OPERANDS, "function")}
    try:
        if "globalDim" in named and not set(named) - set(ARGUMENTS):
            description, found = describe_arguments(with_integers(named))
            if description is None or found:
                raise TensorMapError("it", found)
            named = constructor_arguments(description)
            named |= {"dtype": description.element.lower(), "address": None}
        return kind_of_map(named)(**named)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error


def _tensor(map: TensorMap) -> np.ndarray:
    """Small random integers in the type of the map, so that sums are exact."""
    size = math.prod(map.shape) * map.itemsize
    if size > MOST_BYTES:
        raise ValueError(f"the tensor {map.shape} has {size} bytes; at most {MOST_BYTES} are run")
    numbers = np.random.default_rng(0).integers(0, SMALL, map.shape)
    if map.description.element == "BFLOAT16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(map.dtype)
    return numbers.astype(map.dtype)


def _copied(argument: Any) -> Any:
    return argument.copy() if isinstance(argument, np.ndarray) else argument
