"""``implicit-conv explain``, ``tune`` and ``forget``: the plan of any operator, by shapes."""

from __future__ import annotations

import argparse
import inspect
import json
from typing import Any

from implicit_conv.errors import UsageError
from implicit_conv.timing import UNTOLD, disturbance
from implicit_conv.tma.copy_options import integers

Subparsers = argparse._SubParsersAction  # argparse has no public name for it
RANKS = {1: "1d", 2: "2d", 3: "3d"}
OPERATORS = tuple(
    name.format(rank)
    for name in ("conv{}", "conv_transpose{}", "conv{}_input_grad", "conv{}_weight_grad")
    for rank in RANKS.values()
)
EXAMPLE = "1,64,56,56 64,64,3,3 --padding 1"


def register(commands: Subparsers[Any]) -> None:
    """Add the commands."""
    explain = commands.add_parser(
        "explain",
        help="print how a convolution would be computed, and how long it takes by estimate",
        description="Print the plan of a convolution, of its transpose or of one of its gradients, "
        f"for instance: implicit-conv explain {EXAMPLE}",
    )
    _add_problem(explain)
    explain.add_argument("--device", help="cpu, cuda, or a GPU's target: sm_80, sm_90a, sm_120")
    output = explain.add_mutually_exclusive_group()
    output.add_argument("--brief", action="store_true", help="print what runs, how long, and why")
    output.add_argument("--json", action="store_true", help="print the facts as one JSON object")
    output.add_argument("--trace", action="store_true", help="also print every load")
    explain.set_defaults(run=_explain)
    tune = commands.add_parser(
        "tune",
        help="measure how a convolution is computed fastest, and keep it",
        description="Measure the best few candidates of a convolution on this machine and keep the "
        f"fastest one for later calls, for instance: implicit-conv tune {EXAMPLE}. Beside other "
        "work it measures nothing, and exits with 3.",
    )
    _add_problem(tune)
    tune.add_argument(
        "--filters",
        default="packed",
        help="measure calls with filters that are packed (default), or plain",
    )
    tune.set_defaults(run=_tune)
    forget = commands.add_parser(
        "forget",
        help="forget what tune and the door of torch have measured, for all convolutions",
        description="Remove what `implicit-conv tune`, `plan.tune()` and "
        "`implicit_conv.torch.enable()` have measured, for all convolutions. Compiled "
        "kernels stay: see `implicit-conv cache clear`.",
    )
    forget.set_defaults(run=_forget)


def _add_problem(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "x", type=integers, help="shape of x, such as 1,64,56,56; of dy for an input gradient"
    )
    parser.add_argument(
        "w", type=integers, help="shape of w, such as 64,64,3,3; of dy for a weight gradient"
    )
    parser.add_argument(
        "--operator",
        choices=OPERATORS,
        metavar="NAME",
        help=f"default: conv1d, conv2d or conv3d, by the axes of w; or one of "
        f"{', '.join(OPERATORS[3:])}",
    )
    integer_options = {
        "--stride": "default: 1; one for each axis as in 2,1",
        "--dilation": "default: 1",
        "--groups": "default: 1",
        "--input-shape": "of an input gradient: the shape of x",
        "--weight-shape": "of a weight gradient: the shape of w",
        "--output-padding": "of a transposed convolution",
        "--output-size": "of a transposed convolution: the pixels of y",
        "--max-workspace": "bytes of scratch memory and packed filter at most",
    }
    for name, text in integer_options.items():
        parser.add_argument(name, type=_one_or_more, metavar="N[,N]", help=text)
    words = {
        "--padding": "default: 0; P, P,P, or a name such as same",
        "--padding-mode": "zeros (default), reflect, symmetric, replicate or circular",
        "--layout": "NCHW (default) or NHWC; for other ranks NCW, NWC, NCDHW, NDHWC",
        "--weight-layout": "KCRS (default), KRSC or RSCK",
        "--dtype": "float32 (default), float16, bfloat16 or, on a CPU, float64, int8, uint8, "
        "int16, complex64 or complex128",
        "--w-dtype": "of w, for integers; default: that of x",
        "--out-dtype": "of the result; default: that of x, for integers that of the sums",
        "--activation": "none (default), relu, silu, ...",
        "--precision": "strict, standard (default) or fast",
        "--algorithm": "auto (default), or one of those that explain names",
    }
    for name, text in words.items():
        parser.add_argument(name, metavar="NAME", help=text)


def _one_or_more(text: str) -> int | tuple[int, ...]:
    values = integers(text)
    return values[0] if len(values) == 1 else values


def _plan(options: argparse.Namespace, device: str | None) -> Any:
    """The plan of the operator; options that were not given have its defaults.

    Raises
    ------
    UsageError
        The operator is not given by the shapes, lacks an option that was given, or needs one.
    """
    import implicit_conv

    name = options.operator or "conv" + RANKS.get(len(options.w) - 2, "")
    if name not in OPERATORS:
        raise UsageError(
            f"w has {len(options.w)} axes {options.w}; a filter has 3 to 5: K, C / groups and one, "
            f"two or three for its taps, such as {EXAMPLE.split()[1]}"
        )
    plan = getattr(implicit_conv, f"plan_{name}")
    parameters = inspect.signature(plan).parameters
    given = {key: value for key, value in vars(options).items() if value is not None}
    given = {key: value for key, value in given.items() if key not in NO_OPTIONS}
    if device is not None:
        given["device"] = device
    padding = given.get("padding", "")
    if padding.lstrip("-")[:1].isdigit():
        given["padding"] = _one_or_more(padding)
    for key in given:
        if key not in parameters:
            raise UsageError(f"{name} has no {_option(key)}; leave it out")
    for key in ("input_shape", "weight_shape"):
        if key in parameters and key not in given:
            raise UsageError(f"{name} needs {_option(key)}, such as {_option(key)} 1,64,56,56")
    return plan(options.x, options.w, **given)


# What commands have besides the parameters of plans.
NO_OPTIONS = ("command", "run", "x", "w", "operator", "device", "brief", "json", "trace", "filters")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _explain(options: argparse.Namespace) -> None:
    plan = _plan(options, options.device)
    if options.json:
        print(json.dumps(plan.facts(), indent=1))
        return
    print(plan.explain(brief=options.brief))
    if options.trace:
        for load in plan.trace():
            print(load)


def _tune(options: argparse.Namespace) -> int:
    from implicit_conv.cpu.plan.tuning import parse_filters

    parse_filters(options.filters)  # an error comes before the guard
    plan = _plan(options, "cpu")
    disturbed = disturbance(plan.facts()["threads"])
    if disturbed:
        print(f"{disturbed}\nnothing was measured, and nothing is kept")
        return UNTOLD
    print(plan.tune(options.filters).explain())
    return 0


def _forget(options: argparse.Namespace) -> None:
    from implicit_conv.cpu.candidates.phrases import count
    from implicit_conv.cpu.machine import times
    from implicit_conv.cpu.plan import tuning_cache

    choices, calls = tuning_cache.forget(), times.forget()
    print(f"removed {count(choices, 'choice')}")
    if calls:
        print(f"removed the times of {count(calls, 'kind')} of calls beside torch's kernels")
