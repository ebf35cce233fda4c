"""A choice in words: what runs, what it reads, and what the other candidates would cost."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import replace

from implicit_conv.arrays.integers import describe_sums
from implicit_conv.cpu.candidates.candidate import Candidate, Choice
from implicit_conv.cpu.candidates.phrases import count
from implicit_conv.cpu.candidates.query import Formats, Request
from implicit_conv.cpu.plan.composite import Composite
from implicit_conv.cpu.plan.facts import Clock
from implicit_conv.kernels.cpu.runtime.active_threads import borrowed_name
from implicit_conv.kernels.sources import NJIT

NEAR = "taken over from the choice for a near size, {}; plan_* functions search for this one"
WIDTH = 119  # characters of a line at most; a longer value continues under its start


def explain(problem: str, choice: Choice, formats: Formats) -> str:
    """The rows ``name  value`` of the best candidate, then all candidates and refusals, then what
    its parts are.

    `problem` is the text of the problem. The first call in a process measures the rate of FMAs,
    for some milliseconds.
    """
    clock = Clock.of(choice.best.arch)
    chosen = _chosen(problem, choice, formats, clock)
    return "\n".join([*chosen, *_table(choice, clock), *_parts(choice.best, formats)])


def _parts(c: Candidate, formats: Formats) -> Iterator[str]:
    """The explanations of the parts of a candidate, of which equal ones are explained once."""
    if not isinstance(c.method, Composite):
        return
    shown: dict[Choice, str] = {}
    for title, part in zip(c.method.titles(c), c.parts, strict=True):
        first = shown.setdefault(part, title)
        yield f"\n{title}"
        if first != title:
            yield f"as {first.partition(':')[0]}"
            continue
        own = replace(part, candidates=tuple(part.in_order(part.best)))
        text = c.method.part_text(part.query.problem)
        yield explain(text, own, c.method.part_formats(c, formats))


def _chosen(problem: str, choice: Choice, formats: Formats, clock: Clock) -> Iterator[str]:
    c, packed, request = choice.best, choice.best_packed, choice.query.request
    rows = {
        "problem": problem,
        "": f"{c.problem.flops / 1e9:.3f} GFLOP, {c.problem.bytes / 2**20:.2f} MiB of x, w and y",
        "algorithm": f"{c.name}, precision {request.precision!r}",
        **({"sums": describe_sums(c.problem)} if c.problem.is_integer else {}),
        "machine": _machine(c, formats),
        **c.method.describe(c),
        "memory": _memory(choice, request),
        "estimate": _estimate(c, clock),
        "costs": f"those of {c.arch.costs.name}, {c.arch.costs.made}",
        **({"packed": _packed(packed, clock)} if packed is not c else {}),
        **({"tuned": choice.tuned} if choice.tuned else {}),
        **({"near": NEAR.format(choice.near)} if choice.near else {}),
    }
    return (_wrapped(f"{name:12}", value) for name, value in rows.items())


def _wrapped(start: str, text: str) -> str:
    """`start` and `text`, in lines that are indented by the length of `start`."""
    indent = " " * len(start)
    return start + textwrap.fill(
        indent + text, WIDTH, subsequent_indent=indent, break_on_hyphens=False
    ).removeprefix(indent)


def _machine(c: Candidate, formats: Formats) -> str:
    zeros = ", subnormals are treated as zero" if formats.flushes else ""
    compiler = ", compiled by numba.njit" if formats.compiler == NJIT else ""
    team = borrowed_name()
    threads = "threads" if team is None else f"threads, {team}"
    return (
        f"{c.arch.vector_bits}-bit vectors, {c.arch.l2_bytes >> 10} KiB L2, "
        f"{c.threads} of {c.arch.threads} {threads}{zeros}{compiler}"
    )


def _memory(choice: Choice, request: Request) -> str:
    scratch = max(c.workspace_bytes / c.threads for c in (choice.best, choice.best_packed))
    limit = request.max_workspace
    limited = "" if limit is None else f"; max_workspace is {limit / 1024:.0f} KiB"
    return (
        f"{scratch / 1024:.0f} KiB of scratch memory per thread, "
        f"{choice.best_packed.packed.bytes / 1024:.0f} KiB of packed filter{limited}"
    )


def _estimate(c: Candidate, clock: Clock) -> str:
    peak = clock.peak(c)
    share = c.problem.flops / peak / max(c.cycles, 1.0) * clock.hertz
    source = "measured as" if clock.is_measured else "by the nominal clock"
    return (
        f"{clock.milliseconds(c, c.cycles):.3f} ms on {count(c.threads, 'thread')}, "
        f"{c.cycles / 1e6:.3f} million cycles: {share:.0%} of a direct sum's peak on a core, "
        f"{source} {peak / 1e9:.0f} GFLOP/s"
    )


def _packed(c: Candidate, clock: Clock) -> str:
    milliseconds = clock.milliseconds(c, c.packed_cycles)
    return f"calls with the result of plan.pack(w) run {c.name}: {milliseconds:.3f} ms"


def _table(choice: Choice, clock: Clock) -> Iterator[str]:
    """Every candidate with its estimate and what it needs of strides, then every refusal."""
    yield "candidates, in the order in which they are tried for the strides of the arrays:"
    for c in choice.candidates:
        needs = c.method.needs
        strides = f"needs {needs}" if needs else "takes any strides"
        yield _wrapped(f"  {clock.milliseconds(c, c.cycles):9.3f} ms  ", f"{c.name}; {strides}")
    for name, reason in choice.refusals:
        yield _wrapped(f"  {'refused':>12}  ", f"{name}: {reason}")
