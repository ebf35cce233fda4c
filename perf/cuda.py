"""``perf run --device cuda``: single calls that find L2 cold, beside cuDNN and matmul.

torch lends arrays, events and rivals. Before each timed call a buffer twice the size of L2 is
filled, which evicts the arrays and keeps the queue busy while the host launches: each call is timed
by two events. The SM clock is
read before and after a row; a row during which it fell is dropped.
"""

from __future__ import annotations

import argparse
import random
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from implicit_conv.bench import Seconds
from implicit_conv.contenders import CONTROL, LIMIT_UNITS, WrongResultError
from implicit_conv.testing import EPS, Case
from perf.record import Record, ratios, timings

CALLS = 10  # timed calls of a sample
KEPT_CLOCK = 0.97  # a row is dropped when its clock falls below this share of what it was


def row_maker(
    options: argparse.Namespace, record: Record
) -> Callable[[str, Case], dict[str, Any] | None]:
    """The function that makes a row, on the first GPU.

    Raises
    ------
    ValueError
        torch sees no CUDA device.
    """
    torch = _torch_with_cuda()
    record["machine"]["gpu"] = torch.cuda.get_device_name()
    record["settings"]["against"] = ["torch", "matmul"]

    def make_row(name: str, case: Case) -> dict[str, Any] | None:
        contenders = gpu_contenders(torch, case)
        errors = check(torch, case, contenders)
        before = sm_clock()
        samples = time_in_turn(torch, contenders, options.rounds)
        after = sm_clock()
        if throttled(before, after):
            return None
        return row_of(name, case, samples, errors, [before, after])

    return make_row


def _torch_with_cuda() -> Any:
    try:
        import torch
    except ImportError:
        raise ValueError("--device cuda needs torch for its arrays, events and cuDNN") from None
    if not torch.cuda.is_available():
        raise ValueError("there is no CUDA device: torch.cuda.is_available() is false")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    return torch


def gpu_contenders(torch: Any, case: Case) -> dict[str, Callable[[], Any]]:
    """conv2d and its plan on CUDA arrays, cuDNN, and one matmul of the GEMM view's size."""
    from implicit_conv import conv2d, plan_conv2d

    x, w = case.arrange(*case.inputs(0))
    x_t, w_t = (torch.from_numpy(array).cuda() for array in (x, w))
    plan = plan_conv2d(x.shape, w.shape, x.dtype, **case.options, device="cuda")
    packed = plan.pack(w_t)
    images = x_t.permute(0, 3, 1, 2) if case.layout == "NHWC" else x_t
    filters = w_t
    if case.layout == "NHWC":
        filters = w_t.contiguous(memory_format=torch.channels_last)
    pads = (case.padding[0][0], case.padding[1][0])
    gemm_m, gemm_n, gemm_k = gemm_view(case)
    a, b = (torch.rand(shape, device="cuda") for shape in ((gemm_m, gemm_k), (gemm_k, gemm_n)))

    def call() -> Any:
        return conv2d(x_t, w_t, **case.options)

    return {
        "call": call,
        CONTROL: call,
        "plan": lambda: plan(x_t, packed),
        "torch": lambda: torch.nn.functional.conv2d(
            images, filters, None, case.stride, pads, case.dilation, case.groups
        ),
        "matmul": lambda: a @ b,
    }


def gemm_view(case: Case) -> tuple[int, int, int]:
    """(gemm_m, gemm_n, gemm_k) of fprop: N*P*Q, K, R*S*C of a group."""
    p, q = case.output
    return case.N * p * q, case.K * case.groups, case.C * case.kernel[0] * case.kernel[1]


def check(torch: Any, case: Case, contenders: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Errors of all convolutions against torch in float64, in units of eps * sum|x||w|."""
    x, w = (torch.from_numpy(array).cuda().double() for array in case.inputs(0))
    pads = (case.padding[0][0], case.padding[1][0])
    options = (None, case.stride, pads, case.dilation, case.groups)
    expected = torch.nn.functional.conv2d(x, w, *options)
    scale = torch.nn.functional.conv2d(x.abs(), w.abs(), *options)
    errors = {}
    for name in ("call", "plan", "torch"):
        y = torch.as_tensor(contenders[name](), device="cuda")
        if name != "torch" and case.layout == "NHWC":
            y = y.permute(0, 3, 1, 2)
        units = (y.double() - expected).abs() / (EPS[case.dtype] * scale)
        errors[name] = float(units.nan_to_num(nan=np.inf).max())
        if not errors[name] <= LIMIT_UNITS:
            raise WrongResultError(f"{name} is {errors[name]:.3g} units from float64 on {case}")
    return errors


def time_in_turn(
    torch: Any, contenders: Mapping[str, Callable[[], Any]], rounds: int, seed: int = 0
) -> dict[str, Seconds]:
    """Samples of each contender in random order within rounds: median of CALLS cold calls."""
    cache_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    flush = torch.empty(2 * cache_bytes, dtype=torch.uint8, device="cuda")
    order, names = random.Random(seed), list(contenders)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        contenders[name]()
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            samples[name].append(_sample(torch, contenders[name], flush))
    return {name: np.array(values) for name, values in samples.items()}


def _sample(torch: Any, function: Callable[[], Any], flush: Any) -> float:
    """Median seconds of CALLS calls, each between two events and after a flush of L2."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(CALLS)]
    for start, end in events:
        flush.zero_()
        start.record()
        function()
        end.record()
    torch.cuda.synchronize()
    return float(np.median([start.elapsed_time(end) for start, end in events])) / 1e3


def sm_clock() -> int:
    """MHz of the first GPU's multiprocessors, now."""
    query = ["nvidia-smi", "-i", "0", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout)


def throttled(before: int, after: int) -> bool:
    """Whether the clock fell while a row was measured."""
    return after < KEPT_CLOCK * before


def row_of(
    name: str,
    case: Case,
    samples: Mapping[str, Seconds],
    errors: dict[str, float],
    clocks: list[int],
) -> dict[str, Any]:
    """One measured layer as a record keeps it."""
    gemm_m, gemm_n, gemm_k = gemm_view(case)
    p, q = case.output
    channels, filters = case.C * case.groups, case.K * case.groups
    elements = case.N * (channels * case.size[0] * case.size[1] + filters * p * q)
    elements += gemm_n * gemm_k
    return {
        "layer": name,
        "case": asdict(case),
        "algorithm": "cuda",
        "flops": 2 * gemm_m * gemm_n * gemm_k,
        "bytes": elements * np.dtype(case.dtype).itemsize,
        "errors": errors,
        "timings": timings(samples),
        "ratios": ratios(samples),
        "clocks_mhz": clocks,
    }
