"""What is wrong with bytes that a GPU has returned, for somebody without that GPU.

A tensor copy of random bits: each wrong unit of 16 bytes is looked up among the units that were
expected, so an exchanged swizzle, row or offset shows as a rule. A convolution: where the wrong
elements lie in the tile, and which slip of the kernel would explain them.
"""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perf.bringup.recipes import Problem

Array = NDArray[Any]
UNIT = 16  # bytes that a swizzle moves together
POISON = 0xFF
LINE_UNITS = 8  # of a line of 128 bytes of shared memory
SHOWN = 12  # lines of a list
DUMP_BYTES = 48 << 10  # of a dump, compressed
EXPLAINED = 0.9  # share of the wrong elements that makes a slip worth a line


def units(got: Array, expected: Array, source: Array) -> list[str]:
    """How the bytes of a copy differ from those expected; `source` is the tensor in memory."""
    rows = [array.reshape(-1, UNIT) for array in (got, expected)]
    wrong = np.flatnonzero((rows[0] != rows[1]).any(axis=1))
    places: dict[bytes, int] = {}
    for at, unit in enumerate(rows[1]):
        places.setdefault(unit.tobytes(), at)
    memory, moves, lines = source.tobytes(), Counter[str](), []
    for at in wrong.tolist():
        unit = rows[0][at].tobytes()
        if unit == bytes([POISON]) * UNIT:
            what = "was not written"
        elif unit == bytes(UNIT):
            what = "holds zeros"
        elif unit in places:
            there = places[unit]
            exchanged = (at ^ there) if at // LINE_UNITS == there // LINE_UNITS else None
            moves[f"unit XOR {exchanged}" if exchanged else f"{there - at:+d} units"] += 1
            what = f"holds what belongs to {_place(there)}"
        elif memory.find(unit) >= 0:
            what = f"holds byte {memory.find(unit)} of the tensor, which is not in the copy"
        else:
            what = f"holds {unit.hex()}"
        lines.append(f"  {_place(at)} {what}, expected {rows[1][at].tobytes().hex()}")
    head = [f"{wrong.size} of {len(rows[1])} units of {UNIT} bytes are wrong"]
    head += [f"  {count} are moved by {move}" for move, count in moves.most_common(4)]
    grid = ["  lines of 128 bytes (. right, # wrong):", *_grid(wrong, len(rows[1]))]
    return [*head, *grid, *lines[:SHOWN], *dump("got", got)]


def _place(at: int) -> str:
    return f"line {at // LINE_UNITS} unit {at % LINE_UNITS}"


def _grid(wrong: Array, count: int) -> list[str]:
    marks = np.full(-(-count // LINE_UNITS) * LINE_UNITS, ".")
    marks[wrong] = "#"
    marks[count:] = " "
    lines = ["".join(line) for line in marks.reshape(-1, LINE_UNITS)]
    per = 8
    return [f"  {at:4} {'  '.join(lines[at : at + per])}" for at in range(0, len(lines), per)]


def products(got: Array, expected: Array) -> list[str]:
    """Which elements of A the probe of descriptors returned; both are (row, column) of float32."""
    wrong = np.argwhere(got != expected)
    lines = [f"{len(wrong)} of {got.size} elements are wrong"]
    for row in sorted({int(row) for row, _ in wrong})[:SHOWN]:
        lines.append(f"  row {row}: {got[row, :8].tolist()}, expected {expected[row, :8].tolist()}")
    return [*lines, *dump("got", got)]


def elements(problem: Problem, y: Array, tile: tuple[int, int, int]) -> list[str]:
    """Where y is wrong, and what would explain it; `tile` is (tile_m, tile_n, tile_c)."""
    values, got = problem.values(), problem.found(y)
    expected = problem.result(values)
    wrong, missing = got != expected, np.isnan(got)
    rows = np.moveaxis(wrong, 1, -1).reshape(-1, wrong.shape[1])  # gemm_m, gemm_n
    m, n = np.nonzero(rows)
    lines = [
        f"{wrong.sum()} of {wrong.size} elements are wrong, {int(missing.sum())} of them NaN, as y "
        "was before the launch",
        f"  gemm_m / {tile[0]}: {_counts(m // tile[0])}",
        f"  gemm_m % {tile[0]} / 16: {_counts(m % tile[0] // 16)}",
        f"  gemm_m % 16: {_counts(m % 16)}",
        f"  gemm_n / {tile[1]}: {_counts(n // tile[1])}",
        f"  gemm_n % {tile[1]} / 8: {_counts(n % tile[1] // 8)}",
        f"  gemm_n % 8: {_counts(n % 8)}",
    ]
    for at in np.argwhere(wrong)[:SHOWN].tolist():
        place = tuple(at)
        lines.append(f"  y[{', '.join(map(str, at))}] = {got[place]}, expected {expected[place]}")
    lines += [f"  explained by: {slip}" for slip in _slips(problem, values, got, wrong, tile[2])]
    return [*lines, *dump("y", y)]


def _counts(numbers: Array) -> str:
    found = sorted(Counter(numbers.tolist()).items())
    shown = ", ".join(f"{value}: {count}" for value, count in found[:SHOWN])
    return f"{shown}, ... {len(found)} values" if len(found) > SHOWN else shown


def _slips(
    problem: Problem, values: dict[str, Array], got: Array, wrong: Array, tile_c: int
) -> Iterator[str]:
    """Slips of a kernel whose result is `got` where it is wrong."""
    expected = problem.result(values)
    found, wanted, at = (
        np.moveaxis(array, 1, -1).reshape(-1, got.shape[1]) for array in (got, expected, wrong)
    )
    for axis, name in enumerate(("gemm_m", "gemm_n")):
        for step in (-16, -8, -1, 1, 8, 16):
            share = float((_moved(wanted, axis, step) == found)[at].mean())
            if share >= EXPLAINED:
                yield f"{name} is off by {step} ({100 * share:.0f} % of the wrong elements)"
    changes = [(name, problem, changed) for name, changed in _changes(values, tile_c)]
    for name, other, changed in [*changes, _exchanged(problem, values)]:
        share = float((other.result(changed) == got)[wrong].mean())
        if share >= EXPLAINED:
            yield f"{name} ({100 * share:.0f} % of the wrong elements)"


def _moved(array: Array, axis: int, step: int) -> Array:
    """An array whose element at i along an axis is that at i + step; zeros come in."""
    moved = np.roll(array, -step, axis)
    edge: list[slice] = [slice(None)] * array.ndim
    edge[axis] = slice(-step, None) if step > 0 else slice(0, -step)
    moved[tuple(edge)] = 0
    return moved


def _exchanged(problem: Problem, values: dict[str, Array]) -> tuple[str, Problem, dict[str, Array]]:
    """The problem in which tap (r, s) has the offsets (s, r), in its own dilations."""
    case, w = problem.case, values["w"].swapaxes(-1, -2)
    taps, dilation = ((*of[:-2], of[-1], of[-2]) for of in (case.kernel, case.dilation))
    axes = zip(case.size, case.output, taps, case.stride, dilation, case.padding, strict=True)
    padding = tuple(
        (low, (outputs - 1) * stride + (count - 1) * step + 1 - size - low)
        for size, outputs, count, stride, step, (low, _) in axes
    )
    other = replace(case, kernel=taps, dilation=dilation, padding=padding)
    exchanged = problem._replace(case=other)
    return "offsets of H and W are exchanged", exchanged, {**values, "w": w}


def _changes(values: dict[str, Array], tile_c: int) -> Iterator[tuple[str, dict[str, Array]]]:
    x, w = values["x"], values["w"]
    for tap in np.ndindex(w.shape[2:]):
        without = w.copy()
        without[(..., *tap)] = 0
        yield f"tap {tap} is missing", {**values, "w": without}
    for first in range(0, w.shape[1], tile_c):
        without = w.copy()
        without[:, first : first + tile_c] = 0
        yield f"channels {first} to {first + tile_c} are missing", {**values, "w": without}
        twice = w.copy()
        twice[:, first : first + tile_c] *= 2
        yield f"channels {first} to {first + tile_c} count twice", {**values, "w": twice}
    yield "taps are in reverse order", {**values, "w": np.flip(w, tuple(range(2, w.ndim)))}
    if w.shape[-1] == w.shape[-2]:
        yield "taps are transposed", {**values, "w": w.swapaxes(-1, -2)}
    for letter, axis in zip("WHD", range(-1, 1 - x.ndim, -1), strict=False):
        for step in (1, -1):
            yield f"{letter} is off by {step}", {**values, "x": _moved(x, axis, step)}
    for name in ("bias", "residual"):
        if name in values:
            nothing = np.zeros_like(values[name])
            yield f"no {name} is added", {**values, name: nothing}


def dump(name: str, array: Array) -> list[str]:
    """The bytes of an array as text, for `undump`; nothing if they are too many."""
    packed = zlib.compress(np.ascontiguousarray(array).tobytes(), 9)
    if len(packed) > DUMP_BYTES:
        return [f"  {name}: {len(packed)} bytes compressed, too many to show"]
    return [f"  {name} (zlib, base64): {base64.b64encode(packed).decode()}"]


def undump(line: str) -> Array:
    """The bytes that a line of `dump` holds."""
    text = line.rpartition(": ")[2]
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
