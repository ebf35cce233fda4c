"""``implicit-conv explain`` and ``implicit-conv tune``: the plan of a 2-d convolution."""

from __future__ import annotations

import argparse
from typing import Any

from implicit_conv.tma.commands import integers

Subparsers = argparse._SubParsersAction  # argparse has no public name for it


def register(commands: Subparsers[Any]) -> None:
    """Add both commands."""
    explain = commands.add_parser(
        "explain",
        help="print how a convolution would be computed",
        description="Print the plan of a 2-d convolution, for instance: "
        "implicit-conv explain 1,64,56,56 64,64,3,3 --padding 1",
    )
    _add_problem(explain)
    explain.add_argument("--device", help="cpu, cuda, or a GPU's target: sm_80, sm_90a, sm_120")
    explain.add_argument("--trace", action="store_true", help="also print every load")
    explain.set_defaults(run=_explain)
    tune = commands.add_parser(
        "tune",
        help="measure how a convolution is computed fastest, and keep it",
        description="Measure the best few candidates of a 2-d convolution on this machine and keep "
        "the fastest one for later calls, for instance: "
        "implicit-conv tune 1,64,56,56 64,64,3,3 --padding 1",
    )
    _add_problem(tune)
    tune.add_argument(
        "--filters",
        default="packed",
        help="measure calls with filters that are packed (default), or plain",
    )
    tune.set_defaults(run=_tune)
    forget = commands.add_parser("forget", help="forget what tune has kept, for all convolutions")
    forget.set_defaults(run=_forget)


def _add_problem(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("x", type=integers, help="shape of x, such as 1,64,56,56")
    parser.add_argument("w", type=integers, help="shape of w, such as 64,64,3,3")
    parser.add_argument("--stride", type=integers, default=(1,), metavar="S[,S]")
    parser.add_argument("--padding", default="0", metavar="P[,P] or a name such as same")
    parser.add_argument("--padding-mode", default="zeros", help="zeros (default), reflect, ...")
    parser.add_argument("--dilation", type=integers, default=(1,), metavar="D[,D]")
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--layout", default="NCHW", help="NCHW (default) or NHWC")
    parser.add_argument("--weight-layout", default="KCRS", help="KCRS (default), KRSC or RSCK")
    parser.add_argument(
        "--dtype",
        default="float32",
        help="float32 (default), float16, bfloat16 or, on a CPU, float64, int8, uint8 or int16",
    )
    parser.add_argument("--w-dtype", help="of w, for integers; default: that of x")
    parser.add_argument("--precision", default="standard", help="strict, standard or fast")
    parser.add_argument("--algorithm", default="auto")


def _one_or_two(values: tuple[int, ...]) -> int | tuple[int, ...]:
    return values[0] if len(values) == 1 else values


def _plan(options: argparse.Namespace, device: str | None) -> Any:
    from implicit_conv.operators.conv import plan_conv2d

    padding = options.padding
    if padding.lstrip("-")[:1].isdigit():
        padding = _one_or_two(integers(padding))
    words = "w_dtype padding_mode groups layout weight_layout precision algorithm"
    return plan_conv2d(
        options.x,
        options.w,
        options.dtype,
        stride=_one_or_two(options.stride),
        padding=padding,
        dilation=_one_or_two(options.dilation),
        device=device,
        **{word: getattr(options, word) for word in words.split()},
    )


def _explain(options: argparse.Namespace) -> None:
    plan = _plan(options, options.device)
    print(plan.explain())
    if options.trace:
        for load in plan.trace():
            print(load)


def _tune(options: argparse.Namespace) -> None:
    print(_plan(options, "cpu").tune(options.filters).explain())


def _forget(options: argparse.Namespace) -> None:
    from implicit_conv.cpu.candidates.phrases import count
    from implicit_conv.cpu.plan.tuning_cache import forget

    print(f"removed {count(forget(), 'choice')}")
