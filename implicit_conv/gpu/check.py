"""Checks that need a GPU, each a command of its own process: ``python -m implicit_conv.gpu.check``.

    family NAME [COUNT]   random problems of one kernel family against the float64 oracle
    layers                layers of a ResNet as the planner runs them, on normal data
    copies                tensor copies, byte by byte against implicit_conv.tma
    arrays                torch and CuPy arrays in and out, where those libraries are
    maps                  what the driver says of tensor maps, beside our linter

A kernel that never ends, or an illegal instruction, takes its process along and no other check.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv import tma
from implicit_conv.errors import DriverError, PlanError
from implicit_conv.gpu import driver, launch, load
from implicit_conv.gpu.encode import encode, encode_arguments
from implicit_conv.gpu.plan import GpuPlan, plan
from implicit_conv.gpu.testing import (
    FAMILIES,
    ROUNDING,
    SUM_UNITS,
    dump_call,
    example_copies,
    family_problems,
    loaded,
    problem_of,
    stored,
)
from implicit_conv.gpu.transfer import STREAM, Buffer
from implicit_conv.kernels.ptx import supports
from implicit_conv.testing import Case, error_units, to_nchw
from implicit_conv.tma.driver import driver_arguments

Array = NDArray[Any]
PATIENCE = 20.0  # seconds until a kernel is taken to be stuck
COPY_TARGETS = {"im2col": "sm_90", "w": "sm_100", "w128": "sm_100a"}
POISON = 0xFF  # bytes of a NaN in every type


def wait() -> None:
    """Until the stream is done; a kernel that does not end is an error, not a hang."""
    cuda, deadline = driver.bindings(), time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        (status,) = cuda.cuStreamQuery(STREAM)
        if status == cuda.CUresult.CUDA_SUCCESS:
            return
        if status != cuda.CUresult.CUDA_ERROR_NOT_READY:
            raise DriverError(f"the kernel failed with {status.name}")
    raise TimeoutError(f"the kernel did not end within {PATIENCE:.0f} s")


def send(array: Array) -> Buffer:
    """Device memory with the array's bytes."""
    here = np.ascontiguousarray(array)
    buffer = Buffer(here.nbytes)
    driver.call("cuMemcpyHtoD", buffer.pointer, here.ctypes.data, here.nbytes)
    return buffer


def fetch(buffer: Buffer, shape: tuple[int, ...], dtype: Any) -> Array:
    """The array in device memory, once all work is done."""
    wait()
    array = np.empty(shape, dtype)
    driver.call("cuMemcpyDtoH", array.ctypes.data, buffer.pointer, array.nbytes)
    return array


def convolve(made: GpuPlan, x: Array, w: Array) -> Array:
    """y of a plan for stored arrays; every element of the output is poisoned before."""
    problem, itemsize = made.problem, made.variant.itemsize
    size = int(np.prod(problem.output_shape)) * itemsize
    buffers = send(x), send(w), send(np.full(size, POISON, np.uint8))
    shapes = x.shape, w.shape, problem.output_shape
    operands = (
        buffer.operand(shape, problem.dtype, itemsize)
        for buffer, shape in zip(buffers, shapes, strict=True)
    )
    launch.launch(made, launch.Arrays(*operands), STREAM)
    kind = np.float32 if itemsize == 4 else np.uint16
    return loaded(fetch(buffers[2], problem.output_shape, kind), problem.dtype)


def check_family(name: str, count: str = "80") -> Iterator[str]:
    """Lines that report failures of a family."""
    arch, family = driver.current_arch(), FAMILIES[name]
    if not supports(family.variants[0].target, arch.cc):
        raise PlanError(f"{name} does not run on {arch.target}")
    for number, (case, made) in enumerate(family_problems(family, int(count), 1, arch)):
        x, w = case.inputs(number, integers=True)
        y = to_nchw(
            convolve(made, *(stored(a, made.problem.dtype) for a in case.arrange(x, w))),
            case.layout,
        )
        dtype = made.problem.dtype
        expected = loaded(stored(case.reference(x, w), dtype), dtype)
        wrong = int(np.sum(y != expected))
        if wrong:
            yield f"{made.variant.name}: {wrong} of {y.size} wrong, {case}"


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
            made = plan(problem_of(case, dtype), arch)
            y = to_nchw(convolve(made, *(stored(a, dtype) for a in case.arrange(x, w))), "NHWC")
            expected, scale = case.reference(x, w), case.reference(x, w, magnitude=True)
            allowed = scale + np.abs(expected) * rounding / (SUM_UNITS * 2.0**-24)
            units = error_units(y, expected, allowed, "float32")
            print(f"{made.variant.name}: {units:.2f} of {SUM_UNITS} units, {made.problem}")
            if not units <= SUM_UNITS:
                yield f"{made.variant.name}: {units:.3g} units"


def check_copies() -> Iterator[str]:
    """Lines that report copies whose bytes differ from implicit_conv.tma's."""
    from implicit_conv.kernels import blob
    from implicit_conv.kernels.call import Limits
    from implicit_conv.kernels.geometry import Geometry

    arch = driver.current_arch()
    for copy in example_copies():
        if not supports(COPY_TARGETS[copy.mode], arch.cc):
            continue
        memory, x = copy.tensor(np.random.default_rng(0))
        expected = tma.smem_image(
            copy.map, x, copy.coords, 0, copy.offsets, copy.halo, copy.offset
        ).bytes
        source, y = send(memory), send(np.full(expected.size, POISON, np.uint8))
        try:
            encoded = encode(copy.at(int(source.pointer)))
        except DriverError as error:
            yield f"{copy.name}: {error}"
            continue
        call = dump_call(copy, int(y.pointer), expected.size)
        packed = blob.pack(
            encoded, None, call, Geometry(*[0] * len(Geometry._fields)), Limits(0.0, 0.0)
        )
        load.run_dump(copy.mode, arch, packed, expected.size)
        got = fetch(y, expected.shape, np.uint8)
        wrong = np.flatnonzero(got != expected)
        print(f"{copy.name}: {'right' if wrong.size == 0 else 'WRONG'}")
        if wrong.size:
            yield f"{copy.name}: {wrong.size} bytes wrong, the first at {wrong[0]}"


SPOILED: tuple[tuple[str, Any], ...] = (
    ("channelsPerPixel", 257), ("channelsPerPixel", 4), ("pixelsPerColumn", 0), ("pixelsPerColumn",
    1025), ("elementStrides", (1, 9, 1, 1)), ("pixelBoxLowerCorner", (-129, 0)),
    ("pixelBoxUpperCorner", (-8, -8)), ("globalStrides", (130, 910, 4550)),
)  # fmt: skip


def check_maps() -> Iterator[str]:
    """Lines that report maps of ours that the driver refuses; all verdicts are printed."""
    memory = send(np.zeros(1 << 16, np.uint8))
    for copy in example_copies():
        given = driver_arguments(copy.at(int(memory.pointer)))
        if not supports(COPY_TARGETS[copy.mode], driver.current_arch().cc):
            continue
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


def check_arrays() -> Iterator[str]:
    """Lines that report wrong results or layouts for other libraries' arrays."""
    for name, check in (("torch", _check_torch), ("cupy", _check_cupy)):
        if importlib.util.find_spec(name) is None:
            print(f"{name} is not installed: not checked")
            continue
        yield from check()


def _check_torch() -> Iterator[str]:
    torch: Any = importlib.import_module("torch")
    from implicit_conv import conv2d

    last = torch.channels_last
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x = torch.randint(-3, 4, (2, 64, 9, 11), device="cuda").to(dtype)
        w = torch.randint(-3, 4, (48, 64, 3, 3), device="cuda").to(dtype)
        expected = torch.nn.functional.conv2d(x.double(), w.double(), padding=1).to(dtype)
        for order in (last, torch.contiguous_format):
            source = x.contiguous(memory_format=order)
            with torch.cuda.stream(torch.cuda.Stream()):
                torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
                y: Any = conv2d(source, w, padding=1)
                torch.cuda.current_stream().synchronize()
            if not torch.equal(y, expected) or not y.is_contiguous(memory_format=order):
                yield f"torch {dtype} {order}: wrong result or layout"


def _check_cupy() -> Iterator[str]:
    cupy: Any = importlib.import_module("cupy")
    from implicit_conv import conv2d

    case = Case(2, 64, 48, size=(9, 11), padding=((1, 1), (1, 1)))
    x, w = case.inputs(0, integers=True)
    for dtype in ("float16", "float32"):
        y = conv2d(cupy.asarray(x, dtype), cupy.asarray(w, dtype), padding=1)
        if not np.array_equal(cupy.asnumpy(y), case.reference(x, w).astype(dtype)):
            yield f"cupy {dtype}: wrong result"


COMMANDS: dict[str, Callable[..., Iterator[str]]] = {
    "family": check_family, "layers": check_layers, "arrays": check_arrays,
    "copies": check_copies, "maps": check_maps,
}  # fmt: skip


def main(arguments: list[str]) -> int:
    """Run one check; 0 if nothing failed, 1 if something did, 2 if it cannot run here."""
    name, *rest = arguments or ["help"]
    if name not in COMMANDS:
        print(__doc__)
        return 2
    try:
        driver.bindings()
        failures = list(COMMANDS[name](*rest))
    except (PlanError, ImportError) as error:
        print(f"cannot run: {error}")
        return 2
    print("\n".join(failures) or "all right")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
