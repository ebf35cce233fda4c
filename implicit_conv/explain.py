"""A plan in words: what runs, what it reads, and why not otherwise."""

from __future__ import annotations

from implicit_conv.algorithms import ALGORITHMS, WEIGHED, refusal
from implicit_conv.arch import BFLOAT16
from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.sizes import PLANE_ROWS, register_filters, tail_pixels
from implicit_conv.plan import Plan
from implicit_conv.tiling import column_share


def explain(plan: Plan) -> str:
    """Lines of ``what: how``, then the candidates that were refused and the reason for each."""
    lines = [
        f"problem     {plan.problem}",
        f"            {plan.flops / 1e9:.3f} GFLOP, {plan.bytes / 2**20:.2f} MiB of x, w and y",
        f"algorithm   {plan.algorithm}{_lanes(plan)}, precision {plan.precision!r}",
        *(_columns(plan) if plan.algorithm == "gemm_im2col" else _schedule(plan)),
        f"estimate    {plan.cycles / 1e6:.3f} M cycles of one core, "
        f"{_peak_share(plan):.0%} of its FMA peak",
    ]
    for name in ALGORITHMS:
        reason = refusal(plan.problem, name, plan.precision)
        if reason is None and name not in WEIGHED and name != plan.algorithm:
            reason = "it is there for comparison; ask for it by name"
        if reason:
            lines.append(f"refused     {name}: {reason}")
    return "\n".join(lines)


def _lanes(plan: Plan) -> str:
    what = {
        "pixels": plan.pixel_lanes, "channels": plan.channel_lanes,
        "filters of several groups": plan.group_lanes,
    }  # fmt: skip
    return "".join(f", lanes are {name}" for name, so in what.items() if so)


def _schedule(plan: Plan) -> list[str]:
    return [
        f"machine     {_machine(plan)}",
        f"load tile   {_tile(plan)}",
        f"loads       {_loads(plan)}",
        f"k-blocks    {_blocks(plan)}",
        f"work items  {_items(plan)}",
        f"memory      {_memory(plan)}",
    ]


def _columns(plan: Plan) -> list[str]:
    """What a materialised im2col writes down."""
    problem, (p, q), (r, s) = plan.problem, plan.problem.output, plan.problem.kernel
    return [
        f"loads       none of the schedule: numpy copies {problem.N * p * q} windows of "
        f"{problem.C * r * s} pixels into a matrix",
        "multiply    numpy's matmul, on as many threads as its BLAS takes",
        f"memory      {plan.workspace_bytes} bytes of workspace, packed filter "
        f"{plan.packed_bytes / 1024:.0f} KiB",
    ]


def _machine(plan: Plan) -> str:
    arch = plan.arch
    fma = "" if arch.fma else ", no FMA"
    zeros = ", subnormal numbers as zeros" if plan.subnormals == "flush" else ""
    if plan.problem.dtype != plan.problem.sum_dtype:
        how = "amx" if plan.amx else "pairs" if plan.pairs else "widen"
        fma += f", {plan.problem.dtype} by {BFLOAT16[how]}"
    return (
        f"{arch.vector_bits}-bit vectors{fma}, {arch.l2_bytes >> 10} KiB L2, "
        f"{plan.threads} of {arch.threads} threads{zeros}"
    )


def _tile(plan: Plan) -> str:
    g = plan.geometry
    if plan.swapped:
        return (
            f"{g.tile_q} filters x {g.tile_k} pixels of an image: filters and pixels have traded "
            f"places, register tiles have at most {g.tile_m} filters x {g.tile_k} pixels "
            f"({g.tile_k // plan.lanes} vectors)"
        )
    if plan.planes:
        return (
            f"{g.tile_p} output rows x {g.tile_q} output columns of one channel, cut into register "
            f"tiles of at most {PLANE_ROWS} rows x {plan.lanes} pixels (1 vector)"
        )
    if plan.channel_lanes:
        return (
            f"{g.tile_q} pixels of all taken as one row, cut into register tiles of {g.tile_m} "
            f"pixels x {register_filters(g, plan.lanes)} filters, {plan.lanes} channels at a time; "
            "filters are read in place"
        )
    if plan.pixel_lanes:
        together = plan.problem.weight_layout == "KCRS"
        how = "read in place" if together else "copied to KCRS before, unless they come packed"
        rows = schedule.pixel_rows(g)
        pixels, tile = f"{g.tile_p} output rows x {g.tile_q} output columns of one image", "rows"
        if plan.long_rows:
            pixels, tile = f"{g.tile_p * g.tile_q} pixels of an image, taken as one row", "vectors"
        tail = g.tile_p * g.tile_q % plan.lanes if plan.long_rows else 0
        rest = f", the last {tail} by dot products" if 0 < tail <= tail_pixels(plan.lanes) else ""
        return (
            f"{pixels}, cut into register tiles of at most {g.tile_k} filters x {rows} {tile} x "
            f"{plan.lanes} pixels{rest}; filters are {how}"
        )
    row = "pixels of the image taken as one row" if plan.collapsed else "output columns"
    vectors = 1 if plan.joins_groups else g.tile_k // plan.lanes
    return (
        f"{g.tile_n} images x {g.tile_p} output rows x {g.tile_q} {row}, cut into register "
        f"tiles of at most {g.tile_m} pixels x {vectors * plan.lanes} filters "
        f"({vectors} vector{'s' * (vectors > 1)})"
    )


def _loads(plan: Plan) -> str:
    g = plan.geometry
    if plan.swapped:
        when = "just before its use" if plan.packs_in_loop else "before all others"
        return f"w is read in place; pixels of x are packed, a panel {when}, without a transpose"
    if plan.in_place:
        together = "pixels" if plan.pixel_lanes else "channels"
        inside = "taps that meet it are left out" if plan.joins_groups else "no tile touches it"
        return f"none: x is read in place ({together} lie together; as to padding, {inside})"
    buffers = [
        f"w_offset {schedule.column_offset(g, b)} halo {schedule.column_halo(g, b)}"
        for b in range(g.phases_w)
    ]
    walk = "whole rows as they lie" if g.step_w != g.stride_w else "im2col::w walks"
    return (
        f"{walk} of {schedule.column_pixels(g, g.tile_q)} pixels and halo into "
        f"{len(buffers)} buffer(s) a row ({'; '.join(buffers)}), {schedule.image_rows(g)} rows "
        f"an image, shared by {g.R} filter rows"
    )


def _blocks(plan: Plan) -> str:
    g = plan.geometry
    if plan.planes:
        return f"1 of {g.R * g.S} taps: a channel is a sum of its own"
    if plan.joins_groups:
        return f"1 of {plan.group_channels} channels x {g.R * g.S} taps, those of a filter's group"
    panels = "an image has {} pixel panels" if plan.swapped else "a group has {} filter panels"
    share = 1 if plan.pixel_lanes else column_share(g)
    left_out = f", of which {1 - share:.0%} meet padding alone and are left out"
    return (
        f"{schedule.block_count(g)} of {g.tile_c} channels x {g.R * g.S} taps"
        f"{left_out if share < 1 else ''}; {panels.format(schedule.panel_count(g))}"
    )


def _items(plan: Plan) -> str:
    g = plan.geometry
    chunks = schedule.ceil_div(schedule.panel_count(g), plan.chunk)
    tiles = schedule.tile_count(g)
    if plan.planes:
        return f"{tiles} tiles x {chunks} chunks of {plan.chunk} channels"
    if plan.joins_groups:
        return f"{tiles} tiles x {schedule.block_count(g)} blocks of {g.tile_k} filters"
    if plan.swapped:
        return f"{plan.problem.N} images x {tiles} tiles x {chunks} chunks of {plan.chunk} panels"
    return f"{g.groups} groups x {tiles} tiles x {chunks} chunks of {plan.chunk} panels"


def _memory(plan: Plan) -> str:
    return (
        f"scratch {plan.workspace_bytes / plan.threads / 1024:.0f} KiB a thread (input buffer "
        f"{plan.scratch.buffer / 1024:.0f} KiB), packed filter {plan.packed_bytes / 1024:.0f} KiB"
    )


def _peak_share(plan: Plan) -> float:
    return plan.flops / (4 * plan.lanes * (2 if plan.pairs else 1)) / max(plan.cycles, 1.0)
