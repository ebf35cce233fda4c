"""The steps of a run: lists of items, each of which is right, wrong, or cannot be run.

The order is that in which what a step relies on has been shown by the steps before it.
"""

from __future__ import annotations

import importlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, SupportsInt

import numpy as np
from numpy.typing import NDArray

from implicit_conv.errors import DriverError
from implicit_conv.kernels import sources
from implicit_conv.kernels.gpu.sizes import MAP_BYTES
from implicit_conv.ptx import PtxError
from implicit_conv.testing import Case
from implicit_conv.testing.gpu.problems import loaded
from perf.bringup import diagnose
from perf.bringup.kit import Kit, Launch
from perf.bringup.processes import run_module
from perf.bringup.recipes import Problem, data_of
from perf.shapes import case_of

Array = NDArray[Any]
POINTERS = ("x", "w", "bias", "residual", "y")  # the first fields of a Call
LAUNCHES = 20  # timed launches of a layer
SAMPLES = 64  # elements of a layer that are compared
TOLERANCE = 2.0**-6  # of their sums of magnitudes; y is rounded to 8 bits
REFUSABLE = "permuted"  # in the names of items that a driver may refuse
# The driver is asked on purpose whether there is a context and whether it takes a map.
CHECKER = ("compute-sanitizer", "--report-api-errors", "no", "--error-exitcode", "9", "--tool")
PROFILER = ("ncu", "--set", "full", "--launch-count", "1")
TOOLS = {  # command of a tool, and step, names and number of the items that it watches
    "profile of a 3x3": (PROFILER, "rates", r"3x3 256-256 @14|tiny", 1),
    "profile of a 1x1": (PROFILER, "rates", r"1x1 64-256 @56", 1),
    "memcheck": ((*CHECKER, "memcheck"), "problems", "", 2),
    "synccheck": ((*CHECKER, "synccheck"), "problems", "", 2),
}
TOOL_SECONDS = 150


class WrongError(Exception):
    """What is wrong, in one line, and the lines that show where."""

    def __init__(self, summary: str, lines: list[str]) -> None:
        super().__init__(summary)
        self.lines = lines


class NotRunError(Exception):
    """Why an item cannot be run here."""


class Item(NamedTuple):
    """A name, and a function of the device that returns lines or raises WrongError."""

    name: str
    run: Callable[[Any], list[str]]


def items(kit: Kit, step: str, path: Path) -> Iterator[Item]:
    """The items of a step of the kit that was read from `path`."""
    if step == "driver":
        yield Item("versions", lambda device: [*device.facts(), *_about(kit)])
        for key, image in kit.images.items():
            yield Item(f"load {image.title}", partial(_load, kit, key))
    elif step == "maps":
        for name, arguments in kit.maps:
            yield Item(name, partial(_encode, arguments))
    elif step == "rates":
        yield Item("copy", lambda device: [f"{_timed(device).copy_rate() / 1e12:.2f} TB/s"])
        yield Item("matmul", _matmul)
        for launch in kit.of_step(step):
            yield Item(launch.name, partial(_rate, kit, launch))
    elif step == "tools":
        for name in TOOLS:
            yield Item(name, partial(_tool, name, path))
    else:
        for launch in kit.of_step(step):
            yield Item(launch.name, partial(check, kit, launch))


def _about(kit: Kit) -> list[str]:
    """What the kit was made of."""
    lines = [f"kit: {name} {value}" for name, value in kit.about.items()]
    if kit.about.get("kernel sources") != sources.kernels_hash():
        lines.append("the kernels of this checkout are others than those of the kit, which run")
    return lines


def _load(kit: Kit, key: str, device: Any) -> list[str]:
    lines: list[str] = device.load(key, kit.images[key])
    return lines


def _encode(arguments: dict[str, Any], device: Any) -> list[str]:
    place = device.put(np.zeros(256, np.uint8), 0)
    device.encode({**arguments, "globalAddress": int(place)})
    return []


class Run(NamedTuple):
    """A launch whose arrays are in device memory."""

    places: dict[str, Any]
    blob: bytes
    expected: Array | None
    arrays: dict[str, Array]


def prepare(kit: Kit, launch: Launch, device: Any) -> Run:
    """The launch with arrays in memory; y is poisoned."""
    data = data_of(kit, launch)
    places = {}
    for name, about in launch.arrays.items():
        given = data.arrays.get(name)
        content = np.full(about["bytes"], diagnose.POISON, np.uint8)
        if given is not None:
            content = np.ascontiguousarray(given).reshape(-1).view(np.uint8)
        places[name] = device.put(content, about["offset"])
    return Run(places, bound(launch, places, device), data.expected, data.arrays)


def bound(launch: Launch, places: Mapping[str, SupportsInt], device: Any) -> bytes:
    """The argument of a launch whose arrays are at these addresses."""
    blob = bytearray(launch.blob)
    addresses = [int(places.get(name, 0)) for name in POINTERS]
    start = 2 * MAP_BYTES
    blob[start : start + 8 * len(POINTERS)] = np.array(addresses, np.int64).tobytes()
    for number, arguments in enumerate(launch.maps):
        if arguments is not None:
            address = int(places[arguments["globalAddress"]])
            encoded = device.encode({**arguments, "globalAddress": address})
            blob[MAP_BYTES * number : MAP_BYTES * (number + 1)] = encoded
    return bytes(blob)


def check(kit: Kit, launch: Launch, device: Any) -> list[str]:
    """Run a launch and compare all bytes of y; no lines.

    Raises
    ------
    WrongError
        Some are wrong, or a wait gave up.
    """
    run = prepare(kit, launch, device)
    assert run.expected is not None
    stuck = device.run(launch, run.blob)
    got = device.get(run.places["y"], run.expected.size)
    wrong = int((got != run.expected).sum())
    if not stuck and not wrong:
        return []
    lines = [*stuck, *(_difference(launch, got, run) if wrong else [])]
    summary = "waits gave up" if stuck else f"{wrong} of {got.size} bytes are wrong"
    raise WrongError(summary, lines)


def _difference(launch: Launch, got: Array, run: Run) -> list[str]:
    recipe = launch.recipe
    if recipe["kind"] == "problem":
        return diagnose.elements(Problem.read(recipe), got, tuple(recipe["tile"]))
    assert run.expected is not None
    if recipe["shows"] == "units":
        return diagnose.units(got, run.expected, run.arrays["x"])
    both = (array.view(np.float32).reshape(recipe["shape"]) for array in (got, run.expected))
    return diagnose.products(*both)


def _timed(device: Any) -> Any:
    if not device.timed:
        raise NotRunError("the interpreter has no clock")
    return device


def _matmul(device: Any) -> list[str]:
    _timed(device)
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError:
        raise NotRunError("torch is not installed") from None
    if not torch.cuda.is_available():
        raise NotRunError("torch finds no CUDA device")
    size = 8192
    a, b = (torch.randn(size, size, device="cuda").to(torch.bfloat16) for _ in range(2))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.matmul(a, b)
    start.record()
    for _ in range(LAUNCHES):
        torch.matmul(a, b)
    end.record()
    torch.cuda.synchronize()
    return [f"{2e-9 * size**3 * LAUNCHES / start.elapsed_time(end):.1f} TFLOP/s"]


def _rate(kit: Kit, launch: Launch, device: Any) -> list[str]:
    run = prepare(kit, launch, device)
    device.run(launch, run.blob)
    recipe = launch.recipe
    case, dtype = case_of(recipe["case"]), recipe["dtype"]
    y = device.get(run.places["y"], launch.arrays["y"]["bytes"])
    _check_samples(case, dtype, run.arrays, y.view(np.uint16))
    if not device.timed:
        return [f"{SAMPLES} elements are right; the interpreter has no clock"]
    seconds = min(device.seconds(launch, run.blob, LAUNCHES) for _ in range(3))
    rate = case.problem.flops / seconds / 1e12
    return [
        f"{1e6 * seconds:.1f} us, {rate:.1f} TFLOP/s, {case.problem.bytes / seconds / 1e12:.2f} "
        f"TB/s; estimated {recipe['estimated_us']:.1f} us"
    ]


def _check_samples(case: Case, dtype: str, arrays: dict[str, Array], y: Array) -> None:
    """Compare some elements of a channels-last layer with float64."""
    rng, (P, Q) = np.random.default_rng(0), case.output
    x = arrays["x"].reshape(case.N, *case.size, case.C * case.groups)
    filters = case.K * case.groups
    w = arrays["w"].reshape(filters, *case.kernel, case.C)
    y, wrong = y.reshape(case.N, P, Q, filters), []
    for _ in range(SAMPLES):
        n, p, q, k = (int(rng.integers(size)) for size in (case.N, P, Q, filters))
        total, first = 0.0, k // case.K * case.C  # the first channel of the filter's group
        group = slice(first, first + case.C)
        for r in range(case.kernel[0]):
            for s in range(case.kernel[1]):
                h = p * case.stride[0] - case.padding[0][0] + r * case.dilation[0]
                v = q * case.stride[1] - case.padding[1][0] + s * case.dilation[1]
                if 0 <= h < case.size[0] and 0 <= v < case.size[1]:
                    pixel, taps = (loaded(row, dtype) for row in (x[n, h, v, group], w[k, r, s]))
                    total += float(pixel.astype(np.float64) @ taps)
        found = float(loaded(y[n, p, q, k : k + 1], dtype)[0])
        if not abs(found - total) <= TOLERANCE * total:  # all products are positive
            wrong.append(f"  y[{n}, {p}, {q}, {k}] = {found}, expected {total:.6g}")
    if wrong:
        raise WrongError(f"{len(wrong)} of {SAMPLES} elements are wrong", wrong)


def _tool(name: str, path: Path, device: Any) -> list[str]:
    _timed(device)
    return watched(name, path)


def watched(name: str, path: Path, seconds: float = TOOL_SECONDS) -> list[str]:
    """What one of TOOLS prints while it watches items of the kit at `path`, in another process that
    may take so many seconds.

    Raises
    ------
    NotRunError
        It is not installed.
    WrongError
        It, or what it watched, failed.
    """
    (program, *options), step, match, count = TOOLS[name]
    found = shutil.which(program)
    if found is None:
        raise NotRunError(f"{program} is not on the PATH")
    module = ("perf.bringup", "step", str(path), step, "gpu", "--match", match)
    prefix = (found, *options)
    done = run_module(*module, "--count", str(count), seconds=seconds, prefix=prefix)
    lines = [f"| {line}" for line in done.output.splitlines()]
    if done.status != 0:
        raise WrongError(f"{name} ended with {done.status}", lines)
    return lines


class Span(NamedTuple):
    """Which items of a step: those whose names match, from the first on, so many."""

    first: int = 0
    limit: int = 1 << 30
    match: str = ""


WHOLE = Span()


def report_items(kit: Kit, path: Path, step: str, device: Any, span: Span = WHOLE) -> bool:
    """Run items of a step and print their verdicts; whether none is wrong.

    An item is named before it runs, so that the last name printed is that of one that ends the
    process.
    """
    right = True
    chosen = [item for item in items(kit, step, path) if re.search(span.match, item.name)]
    numbered = list(enumerate(chosen))[span.first : span.first + span.limit]
    for number, item in numbered:
        print(f"{BEGIN} {number} {item.name}", flush=True)
        device.clear()
        try:
            lines, verdict = item.run(device), "right"
        except NotRunError as error:
            lines, verdict = [], f"not run: {error}"
        except WrongError as error:
            lines, verdict, right = error.lines, f"WRONG: {error}", False
        except (PtxError, ValueError) as error:
            head, *lines = str(error).splitlines()
            verdict, right = f"WRONG: {head}", False
        except DriverError as error:
            if "cuTensorMap" not in str(error):
                raise  # the context is lost
            lines, verdict = [], f"WRONG: refused: {error}"
            if REFUSABLE in item.name:
                verdict = f"not run: refused: {error}"
            right = right and REFUSABLE in item.name
        print(*lines, f"{END} {verdict}", sep="\n", flush=True)
    return right


BEGIN, END = "--", "=="  # of an item's lines
