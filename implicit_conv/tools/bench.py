"""``implicit-conv bench``: time typical layers on this machine, against torch or scipy."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from implicit_conv.errors import UsageError, install
from implicit_conv.timing import NOISY, UNTOLD, disturbance, paired_ratio, summarise

# One layer of each kind that networks consist of: (C, K, size, taps, stride).
TYPICAL = {
    "first 7x7/2": (3, 64, 224, 7, 2),
    "1x1 widening": (64, 256, 56, 1, 1),
    "1x1 narrowing": (512, 128, 28, 1, 1),
    "3x3": (64, 64, 56, 3, 1),
    "3x3/2": (128, 128, 56, 3, 2),
    "3x3 deep": (512, 512, 7, 3, 1),
}
NEEDED = {"torch": "torch>=2.13", "scipy": "scipy>=1.11"}  # what is installed for --against


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "bench",
        help="time typical layers on this machine, against torch if it is installed",
        description="Check and time typical layers. `call` is conv2d(x, w), `plan` has a packed "
        "filter; a rival is timed in the same process. A ratio is its time over ours.",
    )
    parser.add_argument("--threads", type=positive, help="default: all that are available")
    parser.add_argument("--layout", default="NCHW", choices=("NCHW", "NHWC"))
    parser.add_argument("--batch", type=positive, default=1)
    parser.add_argument("--rounds", type=positive, default=15, help="samples of each function")
    parser.add_argument(
        "--against", choices=tuple(NEEDED), help="default: torch, if it is installed"
    )
    parser.set_defaults(run=run)


def positive(text: str) -> int:
    """An integer of at least 1."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} must be an integer of at least 1")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Print one row for each layer, then the ceilings and the noise of this run.

    Where other work disturbs the machine, "too noisy" stands in place of ratios, and the exit
    status is UNTOLD.
    """
    from implicit_conv.cpu.machine.arch import cpu_arch
    from implicit_conv.testing import Case
    from implicit_conv.timing import Local
    from implicit_conv.tools.ceilings import measure_ceilings
    from implicit_conv.tools.rivals import CONTROL, RIVALS, measure

    available = cpu_arch().threads
    threads = options.threads or available
    if threads > available:
        raise UsageError(f"--threads {threads}: at most {available} are available here")
    if options.against and not find_spec(options.against):
        command = install(NEEDED[options.against])
        raise UsageError(f"--against {options.against}: it is not installed: {command}")
    against = [options.against] if options.against else ["torch"] * bool(find_spec("torch"))
    disturbed = disturbance(threads)
    if disturbed:
        print(disturbed, flush=True)
    heads = "".join(f"{name + '/call':>12}" for name in against)
    print(f"{'layer':16}{'call':>10}{'plan':>10}{'':>13}{heads}")
    noise = []
    for name, (c, k, size, taps, stride) in TYPICAL.items():
        case = Case(
            N=options.batch,
            C=c,
            K=k,
            size=(size, size),
            kernel=(taps, taps),
            stride=(stride, stride),
            padding=((taps // 2,) * 2,) * 2,
            layout=options.layout,
        )
        arrays = case.arrange(*case.inputs(0))
        rivals = {which: Local(RIVALS[which](case, *arrays, threads)) for which in against}
        plan, _, samples = measure(case, rivals, threads, options.rounds)
        times = {which: summarise(values).median for which, values in samples.items()}
        noise.append(abs(paired_ratio(samples[CONTROL], samples["call"]) - 1))
        ratios = [f"{paired_ratio(samples[which], samples['call']):.2f}x" for which in against]
        if disturbed or noise[-1] > NOISY:
            ratios = ["too noisy"] * len(against)
        print(
            f"{name:16}{times['call'] * 1e3:7.3f} ms{times['plan'] * 1e3:7.3f} ms"
            f"{plan.flops / times['plan'] / 1e9:6.0f} GFLOP/s"
            + "".join(f"{ratio:>12}" for ratio in ratios),
            flush=True,
        )
    peak = measure_ceilings(threads, options.rounds)
    print(
        f"{threads} threads; FMA peak {peak['fma'] / 1e9:.0f} GFLOP/s, copy "
        f"{peak['copy'] / 1e9:.0f} GB/s; the same call against itself differs by up to "
        f"{max(noise):.1%}"
    )
    return UNTOLD if disturbed or max(noise) > NOISY else 0
