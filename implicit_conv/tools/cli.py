"""The command line: ``implicit-conv COMMAND``, also ``python -m implicit_conv COMMAND``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from implicit_conv import __version__
from implicit_conv.errors import DriverError
from implicit_conv.ptx import commands as interpreter
from implicit_conv.tma import commands as laboratory
from implicit_conv.tools import bench, demo, info

USER_ERRORS = (
    ValueError,
    TypeError,
    OSError,
    ImportError,
    argparse.ArgumentTypeError,
    DriverError,
)
Subparsers = argparse._SubParsersAction  # argparse has no public name for it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status, 2 for an error that the user can correct."""
    parser = argparse.ArgumentParser(
        prog="implicit-conv", description="Convolution by implicit GEMM for numpy arrays."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    demo.register(commands)
    info.register(commands)
    bench.register(commands)
    laboratory.register(commands)
    interpreter.register(commands)
    _register_explain(commands)
    options = parser.parse_args(arguments)
    try:
        return options.run(options) or 0
    except BrokenPipeError:  # the reader of the pipe, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except USER_ERRORS as error:
        print(f"implicit-conv {options.command}: {error}", file=sys.stderr)
        return 2


def _register_explain(commands: Subparsers[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "explain",
        help="print how a convolution would be computed",
        description="Print the plan of a 2-d convolution, for instance: "
        "implicit-conv explain 1,64,56,56 64,64,3,3 --padding 1",
    )
    parser.add_argument("x", type=_integers, help="shape of x, such as 1,64,56,56")
    parser.add_argument("w", type=_integers, help="shape of w, such as 64,64,3,3")
    parser.add_argument("--stride", type=_integers, default=(1,), metavar="S[,S]")
    parser.add_argument("--padding", default="0", metavar="P[,P] or a name such as same")
    parser.add_argument("--padding-mode", default="zeros", help="zeros (default), reflect, ...")
    parser.add_argument("--dilation", type=_integers, default=(1,), metavar="D[,D]")
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
    parser.add_argument("--device", help="cpu, cuda, or a GPU's target: sm_80, sm_90a, sm_120")
    parser.add_argument("--trace", action="store_true", help="also print every load")
    parser.set_defaults(run=_explain)


def _integers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be integers separated by commas, such as 1,64,56,56"
        ) from None


def _one_or_two(values: tuple[int, ...]) -> int | tuple[int, ...]:
    return values[0] if len(values) == 1 else values


def _explain(options: argparse.Namespace) -> None:
    from implicit_conv.api import plan_conv2d

    padding = options.padding
    if padding.lstrip("-")[:1].isdigit():
        padding = _one_or_two(_integers(padding))
    plan = plan_conv2d(
        options.x,
        options.w,
        options.dtype,
        w_dtype=options.w_dtype,
        stride=_one_or_two(options.stride),
        padding=padding,
        padding_mode=options.padding_mode,
        dilation=_one_or_two(options.dilation),
        groups=options.groups,
        layout=options.layout,
        weight_layout=options.weight_layout,
        precision=options.precision,
        algorithm=options.algorithm,
        device=options.device,
    )
    print(plan.explain())
    if options.trace:
        for load in plan.trace():
            print(load)


if __name__ == "__main__":
    sys.exit(main())
