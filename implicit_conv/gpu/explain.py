"""A GPU plan in words: what was chosen, what it costs, and why other kernels were not."""

from __future__ import annotations

from collections.abc import Iterator

from implicit_conv.gpu.candidates import Candidate
from implicit_conv.gpu.layout import buffer_rows, buffers
from implicit_conv.gpu.plan import GpuPlan
from implicit_conv.kernels import schedule


def explain(plan: GpuPlan) -> str:
    """The plan and its candidates, a line each."""
    return "\n".join([*_chosen(plan), "", "candidates, by estimated cycles:", *_candidates(plan)])


def _chosen(plan: GpuPlan) -> Iterator[str]:
    v, g, layout = plan.variant, plan.geometry, plan.layout
    groups, m, n = plan.tiles
    yield f"problem     {plan.names}"
    yield f"machine     {plan.arch.target} ({plan.arch.device}: {plan.arch.sms} multiprocessors)"
    yield f"kernel      {v.name}; {v.threads} threads: {v.consumer_warps} warps multiply, " + (
        "one lane issues tensor copies" if v.producer == "tma" else f"{v.producer_warps} warps copy"
    )
    yield f"tiles       {groups} groups x {m} (gemm_m) x {n} (gemm_n) on {plan.blocks} blocks"
    yield (
        f"stages      {layout.a_stages} of A x {layout.a_stage} bytes, "
        f"{layout.b_stages} of B x {layout.b_stage} bytes"
    )
    yield f"shared      {layout.total} of {plan.arch.smem_bytes} bytes"
    yield f"loads       {_loads(plan)}"
    if v.wide:
        yield (
            f"slots       {g.slots} of an image row, {g.Q} kept: "
            f"{100 * (1 - g.Q / g.slots):.1f} % junk"
        )
    yield f"junk rows   {100 * plan.estimate.junk:.1f} % of gemm_m"
    yield (
        f"estimate    {plan.estimate.waves} waves; a tile multiplies for "
        f"{plan.estimate.multiply:.0f} cycles and loads for {plan.estimate.load:.0f}"
    )
    yield "evidence    estimated and simulated; not yet run on hardware"
    if plan.names.layout != plan.problem.layout:
        yield (
            f"arrays      {plan.names.layout} by the names of their axes, channels last in memory; "
            "others go to slower kernels"
        )
    if plan.names.weight_layout != plan.problem.weight_layout:
        yield "filter      rearranged to KRSC in every call; pack(w) does it once"
    if v.producer == "elements":
        yield "slower      x or w is no channels-last array with 16-byte pixels: element by element"


def _loads(plan: GpuPlan) -> str:
    v, g = plan.variant, plan.geometry
    rows = [buffer_rows(v, g, b) for b in range(buffers(v, g))]
    taps = int(schedule.load_taps(g, v.wide))
    kind = "buffers" if len(rows) > 1 else "buffer"
    return (
        f"a k-block has {len(rows)} of A ({kind} of {', '.join(map(str, rows))} rows) "
        f"and {taps} of B, for {taps} filter taps"
    )


def _candidates(plan: GpuPlan) -> Iterator[str]:
    def order(candidate: Candidate) -> float:
        return candidate.estimate.cycles if candidate.estimate else float("inf")

    for candidate in sorted(plan.candidates, key=order):
        name = candidate.variant.name
        if candidate.estimate is None or candidate.layout is None:
            yield f"  {name}: refused, {candidate.reason}"
            continue
        yield (
            f"  {name}: {candidate.estimate.cycles:.3g} cycles, {candidate.estimate.waves} waves, "
            f"{100 * candidate.estimate.junk:.1f} % junk, {candidate.layout.total} bytes shared"
        )
