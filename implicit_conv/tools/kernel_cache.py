"""``implicit-conv cache``: look at the cache of compiled kernels, fill it, check it or clear it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from datetime import date
from typing import NamedTuple

import numpy as np

from implicit_conv.cpu.candidates.phrases import count
from implicit_conv.kernels.sources import is_present
from implicit_conv.problem.options import Layout
from implicit_conv.process.disk import Store, store
from implicit_conv.process.disk_folder import CHOICE, KERNEL, TEMPORARY, TIMES, VARIABLE, File
from implicit_conv.timing import show


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "cache",
        help="the cache of compiled kernels: `cache info`, `check`, `warm` and `clear`",
        description="Look at the cache of compiled kernels, fill it, check it or clear it.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (run, text) in ACTIONS.items():
        action = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        action.set_defaults(run=lambda _, run=run: run(store()))


def _info(kernels: Store) -> None:
    print(describe(kernels))


def describe(kernels: Store) -> str:
    """The lines that `cache info` prints."""
    trouble = kernels.trouble()
    files, choices = kernels.files(KERNEL, TEMPORARY), kernels.files(CHOICE)
    present = sum(is_present(file) for file in files)
    rows = {
        "folder": str(kernels.folder),
        "used": f"no, so every process compiles its kernels: {trouble}" if trouble else "yes",
        "files": f"{len(files)}, {present} of them of this version",
        "size": f"{size_of(files)}, at most {kernels.limit:,} ({VARIABLE})",
        "last used": " to ".join(map(_day, (min(files, key=_used), max(files, key=_used))))
        if files
        else "never",
        "tuned": f"{count(len(choices), 'choice')}; `implicit-conv forget` removes them",
        "measured": f"{count(len(kernels.files(TIMES)), 'kind')} of calls beside torch; it removes "
        "them too",
    }
    return "\n".join(f"{name:13}{value}" for name, value in rows.items())


def size_of(files: Iterable[File]) -> str:
    """The bytes of files, with the unit."""
    return f"{sum(file.bytes for file in files):,} bytes"


def _check(kernels: Store) -> int:
    number = len(kernels.files(KERNEL, CHOICE, TIMES))
    damaged = kernels.damaged()
    for name, reason in sorted(damaged.items()):
        print(f"{kernels.folder / name}: {reason}")
    print(f"{len(damaged)} of {count(number, 'file')} in {kernels.folder} are damaged")
    if damaged:
        print(
            "Calls that need them compile them again and replace them; `implicit-conv cache clear`"
            " removes all kernels, `implicit-conv forget` what was measured."
        )
    return bool(damaged)


class Layer(NamedTuple):
    """A layer of which `cache warm` compiles the kernels."""

    name: str
    C: int
    K: int
    size: int
    taps: int
    stride: int = 1
    groups: int = 1


COMMON = (
    Layer("1x1", 64, 128, 28, 1),
    Layer("1x1, stride 2", 64, 128, 28, 1, 2),
    Layer("3x3", 64, 64, 56, 3),
    Layer("3x3, stride 2", 64, 128, 28, 3, 2),
    Layer("3x3 of colours", 3, 32, 64, 3),
    Layer("7x7 of colours, stride 2", 3, 64, 112, 7, 2),
    Layer("5x5 of one channel", 1, 1, 240, 5),
    Layer("3x3 depthwise", 96, 96, 56, 3, 1, 96),
    Layer("3x3 depthwise, stride 2", 96, 96, 56, 3, 2, 96),
    Layer("5x5 of each colour", 3, 3, 240, 5, 1, 3),
)


def _warm(kernels: Store) -> int:
    trouble = kernels.trouble()
    if trouble:
        print(f"nothing can be kept: {trouble}")
        return 1
    before, start = len(kernels.files(KERNEL)), time.perf_counter()
    layouts: tuple[Layout, ...] = "NCHW", "NHWC"
    for number, layer in enumerate(COMMON):
        for layout in layouts:
            show(f"{number} of {len(COMMON)} layers; compiling {layer.name}, {layout}")
            _call(layer, layout)
        show("")
        print(f"{layer.name:26}{len(kernels.files(KERNEL)) - before:4} kernels compiled")
    print(f"{time.perf_counter() - start:.0f} s; float32, NCHW and NHWC, in {kernels.folder}")
    return 0


def _call(layer: Layer, layout: Layout) -> None:
    """Calls of a layer with a plain filter and a packed one, with a bias and without."""
    from implicit_conv.operators.conv import plan_conv2d

    channels, pixels = (layer.C,), (layer.size, layer.size)
    x = np.zeros((1, *(channels + pixels if layout == "NCHW" else pixels + channels)), np.float32)
    w = np.zeros((layer.K, layer.C // layer.groups, layer.taps, layer.taps), np.float32)
    plan = plan_conv2d(
        x.shape,
        w.shape,
        stride=layer.stride,
        padding=layer.taps // 2,
        groups=layer.groups,
        layout=layout,
    )
    for filters in (w, plan.pack(w)):
        plan(x, filters)
        plan(x, filters, np.zeros(layer.K, np.float32))


def _clear(kernels: Store) -> int:
    removed = kernels.remove(KERNEL, TEMPORARY)
    print(f"removed {count(len(removed), 'file')}, {size_of(removed)}, from {kernels.folder}")
    left = kernels.files(KERNEL, TEMPORARY)
    if left:
        print(f"{count(len(left), 'file')} could not be removed, such as {left[0].name}")
    return bool(left)


ACTIONS: dict[str, tuple[Callable[[Store], int | None], str]] = {
    "info": (_info, "print the folder, its files, bytes, limit and age"),
    "check": (_check, "read every file and name the damaged ones; exit status 1 if there are any"),
    "warm": (_warm, "compile the kernels of common layers, so that first calls are fast"),
    "clear": (_clear, "remove all compiled kernels; later calls compile theirs again"),
}


def _used(file: File) -> float:
    return file.used


def _day(file: File) -> str:
    return date.fromtimestamp(file.used).isoformat()
