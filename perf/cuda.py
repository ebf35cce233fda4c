"""``perf run --device cuda``: single calls with a cold L2, against cuDNN and a large matmul.

torch provides arrays, events and the rival. Before each timed call, a buffer twice the size of L2
is read, which evicts the arrays and leaves no line to write back, and the GPU idles for longer than
the host needs to launch. Two events then time the call without the host. The same matmul is timed
before and after a row: the clock of an idle GPU, as tools report it, tells nothing of a busy one. A
row is dropped, and named, if the matmul became slower or the result is wrong.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from implicit_conv.errors import DriverError, PlanError
from implicit_conv.testing import EPS, Case
from implicit_conv.testing.gpu.problems import ROUNDING, SUM_UNITS
from implicit_conv.timing import Seconds
from implicit_conv.tools.rivals import CONTROL, WrongResultError
from perf.record import Record, layer_row
from perf.shapes import Suite

BATCHES = (256, 32)
DTYPES = ("bfloat16", "float16")
CALLS = 10  # timed calls of a sample; fewer if they take longer than SAMPLE_SECONDS
SAMPLE_SECONDS = 0.02
LAUNCH_CYCLES = 400_000  # GPU cycles of idling before a timed call, about 0.2 ms
KEPT_RATE = 0.97  # a row is dropped if the rate of a matmul falls below this share during the row
PROBE = 4096  # rows and columns of that matmul, about 0.2 ms on an H200
MATMUL = 8192  # rows and columns of the large matmul
COPY_BYTES = 1 << 30
CHECKED = 2  # images that are compared with float64: the first and the last

Call = Callable[[], Any]


def suite_of(layers: Suite, batch: int | None, dtypes: list[str] | None) -> Suite:
    """The layers for a GPU: channels last, for each batch and dtype, the largest batch first."""
    return {
        f"{name} {dtype} n{images}": replace(
            case, N=images, dtype=dtype, layout="NHWC", weight_layout="KRSC"
        )
        for images in ([batch] if batch else BATCHES)
        for dtype in dtypes or DTYPES
        for name, case in layers.items()
    }


@contextmanager
def row_maker(
    options: argparse.Namespace, record: Record
) -> Iterator[Callable[[str, Case], dict[str, Any] | None]]:
    """Yield the function that makes a row, on the current GPU.

    Raises
    ------
    ValueError
        torch finds no CUDA device.
    PlanError
        The engine cannot use the GPU or its driver.
    """
    from implicit_conv.gpu.cuda.driver import current_arch

    torch = torch_with_cuda()
    arch = current_arch()
    record["machine"]["gpu"] = f"{arch.device} ({arch.target}, {arch.sms} multiprocessors)"
    record["settings"].update(against=["torch"], threads=1, dropped={})
    record["ceilings"] = ceilings(torch)

    def make_row(name: str, case: Case) -> dict[str, Any] | None:
        try:
            return measured_row(torch, name, case, options.rounds)
        except (WrongResultError, DriverError, PlanError, ThrottledError) as error:
            record["settings"]["dropped"][name] = str(error)
            return None

    yield make_row


class ThrottledError(ArithmeticError):
    """The GPU became slower while a row was measured."""


def measured_row(torch: Any, name: str, case: Case, rounds: int) -> dict[str, Any]:
    """One layer checked and timed.

    Raises
    ------
    WrongResultError, DriverError, PlanError, ThrottledError
        The row must not be kept.
    """
    arrays = inputs(torch, case)
    functions, algorithm = gpu_functions(torch, case, *arrays)
    checked = {who: function for who, function in functions.items() if who != CONTROL}
    errors = check(torch, case, *arrays, checked)
    before = probe(torch)
    samples = time_in_turn(torch, functions, rounds)
    after = probe(torch)
    if throttled(before, after):
        raise ThrottledError(f"a matmul took {1e6 * before:.0f}, then {1e6 * after:.0f} us")
    row = layer_row(name, case, case.problem, algorithm, errors, samples)
    return row | {"probe_seconds": [before, after]}


def torch_with_cuda() -> Any:
    """torch, set to use the fastest kernels of cuDNN in the arrays' own dtype.

    Raises
    ------
    ValueError
        It is not installed, or finds no CUDA device.
    """
    try:
        import torch
    except ImportError:
        raise ValueError("--device cuda needs torch for its arrays, events and cuDNN") from None
    if not torch.cuda.is_available():
        raise ValueError("there is no CUDA device: torch.cuda.is_available() is false")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch


def inputs(torch: Any, case: Case, device: str = "cuda") -> tuple[Any, Any]:
    """(x, w) with axes N, C, H, W and K, C, R, S: normally distributed, channels last in memory."""
    torch.manual_seed(0)
    kind = getattr(torch, case.dtype)
    shapes = (
        (case.N, *case.size, case.C * case.groups),
        (case.K * case.groups, *case.kernel, case.C),
    )
    x, w = (
        torch.randn(shape, device=device, dtype=torch.float32).to(kind).permute(0, 3, 1, 2)
        for shape in shapes
    )
    return x, w


def gpu_functions(torch: Any, case: Case, x: Any, w: Any) -> tuple[dict[str, Call], str]:
    """({name: function} of conv2d, its plan and cuDNN, name of the kernel)."""
    from implicit_conv import conv2d, plan_conv2d

    options = {name: getattr(case, name) for name in ("stride", "padding", "dilation", "groups")}
    plan: Any = plan_conv2d(tuple(x.shape), tuple(w.shape), case.dtype, **options, device="cuda")
    packed = plan.pack(w)

    def call() -> Any:
        return conv2d(x, w, **options)

    functions = {
        "call": call,
        CONTROL: call,
        "plan": lambda: plan(x, packed),
        "torch": lambda: torch_conv(torch, case, x, w),
    }
    return functions, plan.engine.variant.name


def torch_conv(torch: Any, case: Case, x: Any, w: Any) -> Any:
    """torch's convolution; low and high padding must be equal, as in all named layers."""
    pads = (case.padding[0][0], case.padding[1][0])
    return torch.nn.functional.conv2d(x, w, None, case.stride, pads, case.dilation, case.groups)


def check(
    torch: Any, case: Case, x: Any, w: Any, functions: Mapping[str, Call]
) -> dict[str, float]:
    """Errors of each function in the first and the last image against float64, in units of
    eps * sum|x||w|.

    eps is that of the float32 sum; the error of rounding to the dtype of y is allowed in addition.

    Raises
    ------
    WrongResultError
        An error exceeds SUM_UNITS.
    """
    some = [0, case.N - 1][:CHECKED]
    x64, w64 = x[some].double(), w.double()
    with torch.backends.cudnn.flags(enabled=True, benchmark=False):
        expected = torch_conv(torch, case, x64, w64)
        scale = torch_conv(torch, case, x64.abs(), w64.abs())
    eps = EPS["float32"]
    allowed = scale + expected.abs() * ROUNDING[case.dtype] / (SUM_UNITS * eps)
    errors = {}
    for name, function in functions.items():
        error = (function()[some].double() - expected).abs() / (eps * allowed)
        errors[name] = float(error.nan_to_num(nan=np.inf).max())
        if not errors[name] <= SUM_UNITS:
            raise WrongResultError(f"{name} is {errors[name]:.3g} units from float64 on {case}")
    return errors


def ceilings(torch: Any, device: str = "cuda", matmul: int = MATMUL) -> dict[str, float]:
    """Rates of a large bfloat16 matmul and of a copy, the best of three samples."""
    a, b = (torch.randn(matmul, matmul, device=device).to(torch.bfloat16) for _ in range(2))
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    flush = torch.zeros(1, device=device)
    product = min(_sample(torch, lambda: a @ b, flush, CALLS) for _ in range(3))
    copied = min(_sample(torch, lambda: target.copy_(source), flush, CALLS) for _ in range(3))
    return {"fma": 2 * matmul**3 / product, "copy": 2 * COPY_BYTES / copied}


def time_in_turn(
    torch: Any, functions: Mapping[str, Call], rounds: int, seed: int = 0, device: str = "cuda"
) -> dict[str, Seconds]:
    """Samples of each function, in random order within rounds; one is a median of cold calls."""
    cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    flush = torch.zeros(2 * cache_bytes // 4, device=device)
    order, names = random.Random(seed), list(functions)
    samples: dict[str, list[float]] = {name: [] for name in names}
    slowest = max(_sample(torch, functions[name], flush, 1) for name in names)
    calls = max(1, min(CALLS, int(SAMPLE_SECONDS / slowest)))
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            samples[name].append(_sample(torch, functions[name], flush, calls))
    return {name: np.array(values) for name, values in samples.items()}


def _sample(torch: Any, function: Call, flush: Any, calls: int) -> float:
    """Median seconds of `calls` calls, each between two events and after a flush of L2."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
    for start, end in events:
        flush.sum()
        torch.cuda._sleep(LAUNCH_CYCLES)
        start.record()
        function()
        end.record()
    torch.cuda.synchronize()
    return float(np.median([start.elapsed_time(end) for start, end in events])) / 1e3


def probe(torch: Any, device: str = "cuda", size: int = PROBE) -> float:
    """Seconds of a matmul on a GPU that has been busy for a moment."""
    a, b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    flush = torch.zeros(1, device=device)
    _sample(torch, lambda: a @ b, flush, CALLS)  # raises the clock
    return _sample(torch, lambda: a @ b, flush, CALLS)


def throttled(before: float, after: float) -> bool:
    """Whether the same work took longer after a row than before it."""
    return before < KEPT_RATE * after
