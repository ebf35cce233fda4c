"""Checks that need a GPU, each in a process of its own.

Usage: ``python -m implicit_conv.testing.gpu.hardware CHECK``.

    here                  which GPU there is, if kernels can run on it
    family NAME [COUNT [FIRST]]
                          random problems of one kernel family against the float64 oracle, from
                          problem number FIRST on
    tiles [COUNT [FIRST]] as many of every kernel that the planner may choose, with its own tiles
    weight_gradients [COUNT [FIRST]]
                          as many of every kernel that the planner may choose
    layers                layers of a ResNet with the planner's kernels, on normal data
    copies                tensor copies, byte by byte against implicit_conv.tma
    maps                  which tensor maps the driver accepts, compared with our linter
    input_gradients       on integers against the CPU
    arrays                arrays of torch, CuPy and Numba, where these are installed

Exit status: 0 if all is right, 1 if something is wrong, 2 if the check cannot run here. A kernel
that never ends or meets an illegal instruction ends its own process with status 3; the line before
names the kernel and the problem, and the last line the problem to go on with.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv.errors import DriverError, PlanError
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.transfer import STREAM, send
from implicit_conv.gpu.plan.candidate import Choice
from implicit_conv.gpu.plan.families import FAMILIES
from implicit_conv.gpu.plan.planner import choose
from implicit_conv.gpu.plan.wgrad import WgradChoice, wgrad_variants
from implicit_conv.gpu.run.call import bind
from implicit_conv.gpu.run.launch import Arrays
from implicit_conv.gpu.run.wgrad import WgradCall
from implicit_conv.kernels.gpu.intrinsic import need_numba_cuda
from implicit_conv.kernels.gpu.sizes import COPY_SIZES
from implicit_conv.kernels.gpu.targets import requirement, supports
from implicit_conv.problem.options import GPU_DTYPES, ITEMSIZES
from implicit_conv.testing import Case, error_units, to_nchw
from implicit_conv.testing.gpu.check_arrays import check_arrays
from implicit_conv.testing.gpu.check_copies import check_copies, check_maps
from implicit_conv.testing.gpu.check_input_gradients import check_input_gradients
from implicit_conv.testing.gpu.device_memory import StuckError, fetch, poisoned
from implicit_conv.testing.gpu.problems import (
    ROUNDING,
    SUM_UNITS,
    family_problems,
    loaded,
    problem_of,
    production_problems,
    stored,
)
from implicit_conv.testing.gpu.weight_gradients import (
    db_by_cpu,
    gradient_by_cpu,
    gradient_inputs,
    gradient_problems,
    problems_on_copies,
    with_db,
)

Array = NDArray[Any]


CRASHED = 3  # exit status where a kernel did not end, or the driver reports an error


class CannotRunError(Exception):
    """Something that a check needs is missing."""


def convolve(choice: Choice, x: Array, w: Array) -> Array:
    """y of a choice for stored arrays; the output holds NaNs before the launch."""
    problem, itemsize = choice.problem, choice.variant.itemsize
    buffers = send(x), send(w), poisoned(int(np.prod(problem.output_shape)) * itemsize)
    shapes = x.shape, w.shape, problem.output_shape
    operands = (
        buffer.operand(shape, problem.dtype, itemsize)
        for buffer, shape in zip(buffers, shapes, strict=True)
    )
    x_at, w_at, y_at = operands
    arrays = Arrays(x_at, w_at, y_at)
    bind(choice, arrays)(arrays.addresses, STREAM)
    kind = np.float32 if itemsize == 4 else np.uint16
    return loaded(fetch(buffers[2], problem.output_shape, kind), problem.dtype)


def check_here() -> Iterator[str]:
    """No lines: reaching this check shows that there is a usable GPU."""
    arch = driver.current_arch()
    print(f"{arch.device}, {arch.target}, {arch.sms} multiprocessors")
    return iter(())


def check_family(name: str, count: str = "100", first: str = "0") -> Iterator[str]:
    """Lines that report failures of a family."""
    arch, family = driver.current_arch(), FAMILIES[name]
    if not supports(family.target, arch.cc):
        raise CannotRunError(
            f"{name} needs {requirement(family.target)}, but this is {arch.target}"
        )
    yield from _problems(family_problems(family, int(count), 1, arch), int(first))


def check_tiles(count: str = "20", first: str = "0") -> Iterator[str]:
    """Lines that report failures of the kernels that the planner may choose here."""
    yield from _problems(production_problems(driver.current_arch(), int(count), 1), int(first))


def _problems(problems: Iterator[tuple[Case, Choice]], first: int) -> Iterator[str]:
    """Lines that report failures; each problem is named before it is launched."""
    for number, (case, made) in enumerate(problems):
        if number < first:
            continue
        dtype = made.problem.dtype
        print(f"{number}: {made.variant.name}, {case}", flush=True)
        x, w = case.inputs(number, integers=True)
        given = (stored(array, dtype) for array in case.arrange(x, w))
        y = to_nchw(convolve(made, *given), case.layout)
        expected = loaded(stored(case.reference(x, w), dtype), dtype)
        wrong = int(np.sum(y != expected))
        if wrong:
            yield f"{number}: {made.variant.name}: {wrong} of {y.size} wrong, {case}"


def check_weight_gradients(count: str = "20", first: str = "0") -> Iterator[str]:
    """Lines that report failures of weight gradients by the kernels that the planner may choose."""
    arch = driver.current_arch()
    able = [
        v
        for dtype in GPU_DTYPES
        for size in COPY_SIZES
        for v in wgrad_variants(dtype, size)
        if supports(v.target, arch.cc) and v.copy_bytes == size
    ]
    each = chain(
        gradient_problems(able, arch, int(count), 1), problems_on_copies(arch, int(count), 2)
    )
    for number, made in enumerate(each):
        if number < int(first):
            continue
        print(f"{number}: {made.best.name}, {made.problem}", flush=True)
        x, dy = gradient_inputs(made, number)
        right = gradient_by_cpu(made, x, dy), db_by_cpu(made, dy)
        for choice in (made, with_db(made)):
            found = gradient(choice, x, dy)
            wrong = sum(int(np.sum(own != y)) for own, y in zip(found, right, strict=False))
            if wrong:
                yield f"{number}: {choice.best.name}: {wrong} wrong, {made.problem}"


def gradient(choice: WgradChoice, x: Array, dy: Array) -> list[Array]:
    """[dw], or [dw, db], of a choice for arrays of float32, planes in memory if both are copied.

    Results and the workspace hold NaNs before the launches.
    """
    view, v = choice.view, choice.variant
    planes = choice.best.copies.dy is not None
    order, axes = ((0, 3, 1, 2), (0, 2, 3, 1)) if planes else ((0, 1, 2, 3),) * 2
    ordered = [np.ascontiguousarray(array.transpose(order)) for array in (x, dy)]
    first, second = (
        send(stored(array, v.dtype)).operand(array.shape, v.dtype, v.itemsize).view(axes)
        for array in ordered
    )
    size = ITEMSIZES[choice.out_dtype]
    shapes = (view.weight_shape, (view.K,))[: 1 + v.biased]
    results = [poisoned(int(np.prod(shape)) * size) for shape in shapes]
    dw, *db = (
        result.operand(shape, choice.out_dtype, size)
        for result, shape in zip(results, shapes, strict=True)
    )
    call, sums = WgradCall(choice, first, second, dw, *db), poisoned(choice.workspace_bytes)
    to = [array.address for array in db]
    call(first.address, second.address, dw.address, int(sums.pointer), STREAM, *to)
    kind = np.float32 if size == 4 else np.uint16
    return [
        loaded(fetch(result, shape, kind), choice.out_dtype)
        for result, shape in zip(results, shapes, strict=True)
    ]


LAYERS = (
    Case(8, 64, 64, size=(56, 56), padding=((1, 1), (1, 1))),
    Case(8, 64, 256, size=(56, 56), kernel=(1, 1)),
    Case(8, 128, 128, size=(56, 56), stride=(2, 2), padding=((1, 1), (1, 1))),
    Case(8, 512, 512, size=(7, 7), padding=((1, 1), (1, 1))),
)


def check_layers() -> Iterator[str]:
    """Lines that report errors beyond rounding, on normal data."""
    arch = driver.current_arch()
    for case in (Case(**{**c.__dict__, "layout": "NHWC", "weight_layout": "KRSC"}) for c in LAYERS):
        for dtype, rounding in ROUNDING.items():
            x, w = (loaded(stored(a, dtype), dtype) for a in case.inputs(0))
            made = choose(problem_of(case, dtype), arch)
            print(f"{made.variant.name}, {made.problem}", flush=True)
            y = to_nchw(convolve(made, *(stored(a, dtype) for a in case.arrange(x, w))), "NHWC")
            expected, scale = case.reference(x, w), case.reference(x, w, magnitude=True)
            allowed = scale + np.abs(expected) * rounding / (SUM_UNITS * 2.0**-24)
            units = error_units(y, expected, allowed, "float32")
            print(f"{made.variant.name}: {units:.2f} of {SUM_UNITS} units")
            if not units <= SUM_UNITS:
                yield f"{made.variant.name}: {units:.3g} units"


COMMANDS: dict[str, Callable[..., Iterator[str]]] = {
    "here": check_here,
    "family": check_family,
    "tiles": check_tiles,
    "weight_gradients": check_weight_gradients,
    "layers": check_layers,
    "input_gradients": check_input_gradients,
    "arrays": check_arrays,
    "copies": check_copies,
    "maps": check_maps,
}


def need_gpu() -> None:
    """Raise CannotRunError unless kernels can be compiled and run here."""
    try:
        driver.current_arch()
        need_numba_cuda()
    except (PlanError, DriverError, ImportError) as error:
        raise CannotRunError(str(error)) from error


def main(arguments: list[str]) -> int:
    """Run one check and return its exit status."""
    name, *rest = arguments or ["help"]
    if name not in COMMANDS:
        print(__doc__)
        return 2
    failures = []
    try:
        need_gpu()
        for failure in COMMANDS[name](*rest):
            print(f"WRONG: {failure}", flush=True)
            failures.append(failure)
    except CannotRunError as error:
        print(f"cannot run: {error}")
        return 2
    except (StuckError, DriverError) as error:
        print(f"WRONG: {error}", flush=True)
        os._exit(CRASHED)  # freeing memory would wait for the kernel, or fail once more
    print(f"{len(failures)} wrong" if failures else "all right")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
