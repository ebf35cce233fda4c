"""An operator on an array that is computed block by block: what tiles, dask and cubed share.

An `Operation` is made once for the whole array, with all its checks. It is pickled with every task,
so that it has integers, options and the filter alone; plans and packed filters are kept by the
process that computes a block.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array, check_unmasked, dtype_name, is_masked_array
from implicit_conv.blocks import Axis, Block
from implicit_conv.errors import DTypeError, PlanError, ShapeError
from implicit_conv.operators import conv, transposed
from implicit_conv.operators.dispatch import Operator, make_plan, refuse
from implicit_conv.operators.plan import Plan
from implicit_conv.problem.options import SPACE

OPERATORS: dict[str, Operator] = {
    value.name: value
    for value in (*vars(conv).values(), *vars(transposed).values())
    if isinstance(value, Operator)
}
REFUSED = ("residual", "out", "device")  # options that blocks do not have
PACKED_FILTERS = 256  # kept in a process; a filter is packed for each kind of plan that reads it
_PACKED: OrderedDict[object, Any] = OrderedDict()
_PACKING = threading.Lock()
Span = tuple[int, int]  # the first of some pixels, and the end


@dataclass(frozen=True, eq=False)
class Operation:
    """An operator, with all its options, on an array of a given shape.

    Attributes
    ----------
    name : str
        "conv2d" or another of OPERATORS.
    letters : str
        The axes of x and y, such as "NCHW".
    axes : dict
        The `Axis` of each spatial letter.
    x_shape, y_shape : tuple of ints
    x_dtype, y_dtype : str
    filters : tuple
        w, bias and scale.
    options : dict
        What `make_plan` takes besides shapes, dtypes and padding.
    token : object
        What w is known by.
    """

    name: str
    letters: str
    axes: dict[str, Axis]
    x_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    x_dtype: str
    y_dtype: str
    filters: tuple[Any, Any, Any]
    options: dict[str, Any]
    token: object

    def spans(self, place: Sequence[Span]) -> list[Block]:
        """What each axis of x gives to the block of y at these pixels of each of its axes."""
        return [self.block(axis, *span) for axis, span in enumerate(place)]

    def block(self, axis: int, start: int, stop: int) -> Block:
        """What an axis of x gives to the pixels start .. stop - 1 of this axis of y."""
        letter = self.letters[axis]
        if letter in self.axes:
            return self.axes[letter].block(start, stop)
        whole = slice(0, self.x_shape[axis]) if letter == "C" else slice(start, stop)
        return Block((whole,), (0, 0))

    def compute(self, x: Array, blocks: Sequence[Block], out: Array | None = None) -> Array:
        """The block of y that needs `blocks`, of which `read` or a halo exchange has made `x`."""
        w, bias, scale = self.filters
        plan = self._plan(x.shape, blocks)
        y: Array = plan(x, _packed(plan, w, self.token), bias, scale=scale, out=out)
        return y

    def seconds(self, blocks: Sequence[Block]) -> float:
        """The estimated time of a block that needs `blocks`, on all threads of the settings."""
        engine: Any = self._plan([block.pixels for block in blocks], blocks).engine
        return float(engine.best.seconds)

    def _plan(self, x_shape: Sequence[int], blocks: Sequence[Block]) -> Plan:
        pads = {letter: block.pads for letter, block in zip(self.letters, blocks, strict=True)}
        w = self.filters[0]
        return make_plan(
            OPERATORS[self.name],
            x_shape=tuple(x_shape),
            w_shape=w.shape,
            dtype=self.x_dtype,
            w_dtype=w.dtype,
            padding=tuple(pads[letter] for letter in self.axes),
            searches=False,  # blocks at the ends have other sizes
            **self.options,
        )

    def with_filters(self, *filters: Any) -> Operation:
        """The operation with these arrays for w, bias and scale."""
        return replace(self, filters=filters)


def operation(name: str, x: Any, w: Any, *args: Any, **kwargs: Any) -> Operation:
    """The operation that the function `name` does with these arguments on an array like `x`.

    Parameters
    ----------
    name : "conv1d" or another of OPERATORS
    x : object with a shape and a dtype
    w, args, kwargs
        As in the function of that name of `implicit_conv`.

    Raises
    ------
    ShapeError, DTypeError, PlanError
        As in that function, for the whole array; blocks have neither residual, out nor device.
    TypeError
        The function has no such parameter.
    """
    if name not in OPERATORS:
        raise PlanError(f"operator {name!r} is none of {', '.join(OPERATORS)}")
    operator = OPERATORS[name]
    own = signature(name)
    other = {key: value for key, value in kwargs.items() if key not in own.parameters}
    if other:
        refuse(name, other)
    given = own.bind(x, w, *args, **kwargs).arguments
    for option in REFUSED:
        value = given.pop(option, None)
        if value is not None and not (option == "device" and value == "cpu"):
            raise PlanError(f"{option} cannot be given to {name} in blocks; {_OTHER_WAYS[option]}")
    for part in ("x", "w", "bias", "scale"):
        check_unmasked(part, given.get(part))
    del given["x"], given["w"]
    given["device"] = "cpu"
    filters = np.asarray(w), *(given.pop(part, None) for part in ("bias", "scale"))
    shape, dtype = tuple(int(n) for n in x.shape), dtype_name(x.dtype)
    if 0 in shape:
        raise ShapeError(f"x has shape {shape}; an array without elements has no blocks")
    plan = make_plan(
        operator,
        x_shape=shape,
        w_shape=filters[0].shape,
        dtype=dtype,
        w_dtype=filters[0].dtype,
        **given,
    )
    engine: Any = plan.engine
    for option in ("padding", "output_padding", "output_size"):  # each block has its own padding
        given.pop(option, None)
    letters = plan.problem.array_layout
    return Operation(
        name=name,
        letters=letters,
        axes=_axes(plan.problem, name.startswith("conv_transpose")),
        x_shape=shape,
        y_shape=tuple(engine.y_shape),
        x_dtype=dtype,
        y_dtype=engine.out_dtype,
        filters=(filters[0], *(None if part is None else np.asarray(part) for part in filters[1:])),
        options=given,
        token=digest(filters[0]),
    )


def digest(filters: Array) -> str:
    """What the content of a filter is known by."""
    return hashlib.blake2b(np.ascontiguousarray(filters).tobytes(), digest_size=16).hexdigest()


def signature(name: str) -> inspect.Signature:
    """The parameters of the function `name` of `implicit_conv`."""
    return inspect.signature({**vars(conv), **vars(transposed)}[name])


_OTHER_WAYS = {
    "residual": "add it to the result, and apply the activation after that",
    "out": "store the result afterwards, or use implicit_conv.tiles",
    "device": "they are computed on the CPU",
}


def _axes(problem: Any, flipped: bool) -> dict[str, Axis]:
    """The axes of an operator; the problem of a transposed convolution maps its y to its x."""
    sizes: Any = problem.output if flipped else problem.size
    outputs = problem.size if flipped else problem.output
    taps, steps, gaps = problem.kernel, problem.stride, problem.dilation
    pads = problem.pad_lo, problem.pad_hi
    mode = problem.padding_mode
    return {
        letter: Axis(size, count, step, gap, low, high, output, mode, flipped)
        for letter, size, count, step, gap, low, high, output in zip(
            SPACE[problem.rank], sizes, taps, steps, gaps, *pads, outputs, strict=True
        )
    }


def _packed(plan: Plan, w: Array, token: object) -> Any:
    """The filter as `plan` reads it, packed once in this process."""
    key = token, w.shape, w.dtype.str, _order(plan)
    with _PACKING:
        if key not in _PACKED:
            _PACKED[key] = plan.pack(w)
            if len(_PACKED) > PACKED_FILTERS:
                _PACKED.popitem(last=False)
        return _PACKED[key]


def _unlock() -> None:
    """In a forked child no thread holds the lock, whoever held it in the parent."""
    global _PACKING  # noqa: PLW0603
    _PACKING = threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_unlock)


def _order(plan: Plan) -> object:
    """Equal for plans that read the same packed filter."""
    best = getattr(plan.engine, "best_packed", None)
    return plan.problem if best is None or best.packed is None else best.packed.key


def read(source: Any, blocks: Sequence[Block], dtype: Any) -> Array:
    """The pixels of `source` that blocks need, read run by run."""
    if all(len(block.runs) == 1 for block in blocks):
        return np.asarray(_run(source, [block.runs[0] for block in blocks]))
    x = np.zeros([block.pixels for block in blocks], dtype)
    for runs in itertools.product(*(_targets(block) for block in blocks)):
        x[tuple(target for target, _ in runs)] = _run(source, [run for _, run in runs])
    return x


def unmasked(part: Any) -> Any:
    """A part of x that was read, such as a slice of a file's variable, or a chunk.

    Raises
    ------
    DTypeError
        Elements of it are masked. Sums would take what lies under the mask, such as 1e20.
    """
    if is_masked_array(part):
        count = np.count_nonzero(part.mask)
        if count:
            raise DTypeError(
                f"{count} of {part.size} elements of a part of x are masked; sums ignore masks, so "
                "pass dask.array.ma.filled(x, 0) of an array of dask, and of another one an object "
                "with its shape and dtype whose x[index] is numpy.ma.filled(x[index], 0)"
            )
    return part


def _targets(block: Block) -> list[tuple[slice, slice]]:
    """Where each run of a block is placed, and the run."""
    found, place = [], 0
    for run in block.runs:
        pixels = Block((run,), (0, 0)).pixels
        found.append((slice(place, place + pixels), run))
        place += pixels
    return found


def _run(source: Any, runs: Sequence[slice]) -> Any:
    """One run of each axis; files are read forwards, and the pixels reversed in memory."""
    flips = tuple(slice(None, None, run.step) for run in runs)
    forward = []
    for run in runs:
        last = run.start + 1
        first = 0 if run.stop is None else run.stop + 1
        forward.append(slice(first, last) if run.step == -1 else run)
    read = unmasked(source[tuple(forward)])
    return read if all(flip.step is None for flip in flips) else read[flips]
