"""A GPU plan in words: the chosen kernel, its cost, and why other kernels were not chosen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from implicit_conv.gpu.plan.candidate import Candidate, Choice
from implicit_conv.gpu.plan.direct import load_bytes
from implicit_conv.gpu.plan.families import evidence_of
from implicit_conv.gpu.plan.layout import buffer_rows, buffers
from implicit_conv.gpu.plan.phases import AnyChoice, Gradient
from implicit_conv.gpu.plan.wgrad import WgradCandidate, WgradChoice
from implicit_conv.kernels import schedule
from implicit_conv.kernels.gpu.sizes import COPY_SIZES, VECTOR_BYTES
from implicit_conv.kernels.gpu.variant import STAGED_CHANNELS, Rows, Strip

Kernel: TypeAlias = Choice | WgradChoice  # the choice of one
Planned: TypeAlias = AnyChoice | WgradChoice
AnyCandidate: TypeAlias = Candidate | WgradCandidate


def explain(choice: AnyChoice) -> str:
    """The choice and its candidates, a line each."""
    if isinstance(choice, Gradient):
        return "\n".join(_gradient(choice))
    candidates = sorted(choice.candidates, key=lambda candidate: candidate.cycles)
    return "\n".join(
        [
            *_chosen(choice),
            "",
            f"candidates, by estimated time at {choice.arch.hertz / 1e9:.2f} GHz:",
            *(_candidate(candidate, choice) for candidate in candidates),
        ]
    )


def explain_wgrad(choice: WgradChoice) -> str:
    """As `explain`, of a weight gradient."""
    v, arch, best, estimate = choice.variant, choice.arch, choice.best, choice.estimate
    groups, m, n = choice.tiles
    copied = best.copies.all
    lines = [
        f"problem     weight gradient of {choice.problem}; dw {choice.out_dtype}",
        f"machine     {arch.target} ({arch.device}: {arch.sms} multiprocessors)",
        *(f"copy        channels-last {c.shape}, {c.bytes} bytes, in every call" for c in copied),
        f"kernel      {v.name}; {v.threads} threads: {v.consumer_warps} warps multiply",
        f"tiles       {plural(groups, 'group')} x {m} (gemm_m: filters) x {n} (gemm_n: channels of "
        "taps)",
        f"splits      {plural(best.splits, 'split')} of the pixels, each of "
        f"{plural(best.k_blocks, 'k-block')} of {v.tile_k}; a second kernel adds them in order",
        f"stages      {best.stages} x {v.stage_bytes} bytes",
        f"shared      {choice.shared_bytes} of {arch.smem_bytes} bytes",
        f"workspace   {choice.workspace_bytes} bytes",
        f"estimate    {plural(estimate.waves, 'wave')} of {plural(choice.blocks, 'block')}; a "
        f"k-block multiplies for {estimate.multiply:.0f} cycles and loads for {estimate.load:.0f}",
        f"evidence    {evidence_of(v, arch.target)}",
        "",
        f"candidates, by estimated time at {arch.hertz / 1e9:.2f} GHz:",
    ]
    for each in sorted(choice.candidates, key=lambda candidate: candidate.cycles):
        name, found = each.name, each.estimate
        if found is None:
            lines.append(f"  {'refused':>12}  {name}: {each.reason}")
            continue
        lines.append(
            f"  {1e3 * found.cycles / arch.hertz:9.3f} ms  {name}: "
            f"{plural(each.splits, 'split')}, {plural(found.waves, 'wave')}"
        )
    return "\n".join(lines)


def _gradient(gradient: Gradient) -> Iterator[str]:
    """The phases, a line each, and the choice of that which takes longest."""
    problem, arch = gradient.problem, gradient.arch
    yield f"problem     gradient of the input of {problem}"
    yield f"machine     {arch.target} ({arch.device}: {arch.sms} multiprocessors)"
    yield (
        f"filter      copied in the order of the phases in every call, {gradient.workspace_bytes} "
        "bytes; pack(w) does this once for all calls"
    )
    for part in gradient.parts:
        view, milliseconds = part.choice.view, 1e3 * gradient.part_seconds(part)
        if not view.C:
            own = "set to zero if nothing is added and dx has no gaps, else by "
            own *= gradient.keeps_zeros
            yield (
                f"no taps     pixels that no tap reaches: {milliseconds:.3f} ms, {own}"
                f"{part.choice.variant.name}"
            )
            continue
        h, w = ((each.start or 0, each.step or 1) for each in part.pixels[1:3])
        taps = "x".join(map(str, view.kernel))
        yield (
            f"phase       rows {h[0]}::{h[1]}, columns {w[0]}::{w[1]}, {taps} taps: "
            f"{milliseconds:.3f} ms, {part.choice.variant.name}"
        )
    yield f"estimate    {1e3 * gradient.seconds:.3f} ms in sum; the phase that takes longest:"
    yield f"\n{explain(gradient.choices[0])}"


def facts_of(choice: Planned) -> dict[str, Any]:
    """The facts of `Plan.facts`, without a limit: no GPU of the target may be here to measure."""
    if isinstance(choice, Gradient):
        return _facts_of_gradient(choice)
    hertz, able = choice.arch.hertz, [c for c in choice.candidates if c.estimate is not None]
    candidates = [
        {"kernel": _name(c, choice), "milliseconds": 1e3 * c.cycles / hertz, "needs": ""}
        for c in sorted(able, key=lambda c: (not _is_chosen(c, choice), c.cycles))
    ]
    return {
        "problem": str(choice.problem),
        "device": choice.arch.target,
        "algorithm": "implicit_gemm",
        "kernel": _name(choice, choice),
        "asked": False,
        "tuned": "",
        "threads": None,
        "milliseconds": 1e3 * choice.estimate.cycles / hertz,
        "flops": choice.problem.flops,
        "bytes": choice.problem.bytes,
        "peak": None,
        "peak_is_measured": False,
        "packed": None,
        "candidates": candidates,
        "refused": [
            {"kernel": _name(c, choice), "reason": c.reason}
            for c in choice.candidates
            if c.estimate is None
        ],
        "parts": [],
    }


def _facts_of_gradient(gradient: Gradient) -> dict[str, Any]:
    """Those of a convolution, with the sum of the estimates, and the phases as parts."""
    parts = [facts_of(part.choice) for part in gradient.parts if part.choice.view.C]
    name = plural(len(parts), "stride phase")
    if not gradient.writes_once:
        name += ", after pixels that no tap reaches"
    own = {"kernel": name, "milliseconds": 1e3 * gradient.seconds}
    problem = gradient.problem
    return {
        **facts_of(gradient.choices[0]),
        **own,
        "problem": f"gradient of the input of {problem}",
        "flops": problem.flops,
        "bytes": problem.bytes,
        "candidates": [{**own, "needs": ""}],
        "refused": [],
        "parts": parts,
    }


def _chosen(choice: Choice) -> Iterator[str]:
    v, arch, view = choice.variant, choice.arch, choice.view
    yield f"problem     {choice.problem}"
    yield f"machine     {arch.target} ({arch.device}: {arch.sms} multiprocessors)"
    if choice.fallback or choice.problem.rank == 1:
        yield (
            f"view        x is viewed as {view.input_shape}, w as {view.weight_shape}, y as "
            f"{view.output_shape}; loads have coordinates of these"
        )
    if v.strip:
        yield from _direct(choice, v.strip)
    else:
        yield from _rows(choice, v.band) if v.band else _gemm(choice)
    yield (
        f"estimate    {plural(choice.estimate.waves, 'wave')}; a tile multiplies for "
        f"{choice.estimate.multiply:.0f} cycles and loads for {choice.estimate.load:.0f}"
    )
    yield f"evidence    {evidence_of(v, arch.target)}"
    yield from _arrays(choice)


def _gemm(choice: Choice) -> Iterator[str]:
    """Threads, tiles, stages and loads of a kernel with matrix instructions or GEMM fragments."""
    v, g, layout = choice.variant, choice.geometry, choice.layout
    groups, m, n = choice.tiles
    loader = (
        "one lane issues tensor copies" if v.producer == "tma" else f"{v.producer_warps} warps copy"
    )
    yield f"kernel      {v.name}; {v.threads} threads: {v.consumer_warps} warps multiply, {loader}"
    yield (
        f"tiles       {plural(groups, 'group')} x {m} (gemm_m) x {n} (gemm_n) "
        f"on {plural(choice.blocks, 'block')}"
    )
    yield (
        f"stages      {layout.a_stages} of A x {layout.a_stage} bytes, "
        f"{layout.b_stages} of B x {layout.b_stage} bytes"
    )
    yield f"shared      {layout.total} of {choice.arch.smem_bytes} bytes"
    yield f"loads       {_loads(choice)}"
    if v.wide:
        yield (
            f"slots       {g.slots} of an image row, {g.Q} kept: "
            f"{100 * (1 - g.Q / g.slots):.1f} % junk"
        )
    yield f"junk rows   {100 * choice.estimate.junk:.1f} % of gemm_m"


def _direct(choice: Choice, strip: Strip) -> Iterator[str]:
    """Threads, tiles and loads of a kernel on the CUDA cores."""
    v, layout = choice.variant, choice.layout
    panels, m, _ = choice.tiles
    taps = plural(strip.columns, "filter tap")
    yield (
        f"kernel      {v.name}; {v.threads} threads, each with {plural(v.filters, 'filter')} of "
        f"{plural(strip.pixels, 'output pixel')}"
    )
    yield (
        f"tiles       {plural(panels, 'panel')} of {v.tile_n} filters x {m} of {v.tile_m} pixels "
        f"on {plural(choice.blocks, 'block')}"
    )
    yield f"shared      {layout.total} of {choice.arch.smem_bytes} bytes, the filters of a panel"
    yield (
        f"loads       {plural(len(strip.positions), 'pixel')} into registers, {load_bytes(v)} "
        f"bytes a load, for {taps} of {plural(strip.pixels, 'output pixel')}"
    )
    yield f"junk        {100 * choice.estimate.junk:.1f} % of the pixels of all tiles"


def _rows(choice: Choice, band: Rows) -> Iterator[str]:
    """Threads, tiles and staged rows of a kernel by rows."""
    v, layout = choice.variant, choice.layout
    _, m, panels = choice.tiles
    yield f"kernel      {v.name}; {v.threads} threads, {plural(v.resident, 'block')} at a time"
    yield (
        f"tiles       {plural(panels, 'panel')} of {v.tile_n} filters x {m} of {band.rows} x "
        f"{v.row_columns} pixels on {plural(choice.blocks, 'block')}"
    )
    yield (
        f"shared      {layout.total} of {choice.arch.smem_bytes} bytes: {band.held} rows of x with "
        f"{STAGED_CHANNELS} channels a pixel, the filters of a panel"
    )
    yield (
        f"loads       {plural(band.fresh, 'row')} of x a tile, {band.staged} of the first of an "
        f"image, from {v.producer.replace('vectors', 'pixels')}; windows overlap in a staged row"
    )
    yield f"junk        {100 * choice.estimate.junk:.1f} % of the pixels of all tiles"


def _arrays(choice: Choice) -> Iterator[str]:
    """What the kernel needs of the arrays, where that differs from the caller's layouts."""
    problem = choice.problem
    order = "".join(problem.weight_layout[axis] for axis in choice.filter_axes)
    by_rows = choice.variant.band is not None  # which reads planes as fast as pixels, any filter
    if choice.axes != tuple(sorted(choice.axes)):
        where = "x may have either order" if by_rows else "other arrays go to slower kernels"
        yield f"arrays      axes are named {problem.layout}, memory is channels-last; {where}"
    if choice.filter_axes != tuple(sorted(choice.filter_axes)) and not by_rows:
        yield f"filter      packed to {order} in every call; pack(w) does this once for all calls"
    if choice.fallback:
        yield (
            "fallback    arrays that are not contiguous and channels-last go to "
            f"{choice.fallback.variant.name}"
        )
    v = choice.variant
    if v.alignment < VECTOR_BYTES:
        elements = v.producer == "elements"
        least = VECTOR_BYTES if v.strip or v.band or not elements else min(COPY_SIZES)
        how = "element by element" if elements else f"{v.copy_bytes} bytes at a time"
        yield (
            f"slower      x or w is not a channels-last array with a multiple of {least} bytes of "
            f"channels, so it is loaded {how}"
        )


def _loads(choice: Choice) -> str:
    v, g = choice.variant, choice.geometry
    rows = [buffer_rows(v, g, b) for b in range(buffers(v, g))]
    taps = int(schedule.load_taps(g, v.wide))
    kind = "buffers" if len(rows) > 1 else "buffer"
    return (
        f"a k-block has {len(rows)} of A ({kind} of {', '.join(map(str, rows))} rows) "
        f"and {taps} of B, for {plural(taps, 'filter tap')}"
    )


def _name(made: AnyCandidate | Kernel, choice: Kernel) -> str:
    """The name of a kernel, and whether it computes a view of planes, patches or copies."""
    if isinstance(choice, WgradChoice):
        return (made if isinstance(made, WgradCandidate) else choice.best).name
    plain = choice.candidates[0].view
    other = " on patches" if made.view.rank == plain.rank else " on planes"
    return made.variant.name + (other if made.view != plain else "")


def _is_chosen(candidate: AnyCandidate, choice: Kernel) -> bool:
    if isinstance(choice, WgradChoice):
        return candidate is choice.best
    return (candidate.view, candidate.variant) == (choice.view, choice.variant)


def _candidate(candidate: Candidate, choice: Choice) -> str:
    name, hertz = _name(candidate, choice), choice.arch.hertz
    layout, estimate = candidate.layout, candidate.estimate
    if layout is None or estimate is None:
        return f"  {'refused':>12}  {name}: {candidate.reason}"
    return (
        f"  {1e3 * estimate.cycles / hertz:9.3f} ms  {name}: {plural(estimate.waves, 'wave')}, "
        f"{100 * estimate.junk:.1f} % junk, {layout.total} bytes shared"
    )


def plural(count: int, noun: str) -> str:
    """A count with its noun: 1 wave, 2 waves."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
