"""The shared memory of a GPU block: two rings, staging tiles, row table, barriers."""

from __future__ import annotations

from typing import NamedTuple

from implicit_conv.gpu.plan.direct import filter_bytes
from implicit_conv.gpu.plan.rows import row_bytes
from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu.sizes import (
    ROW_ENTRY_BYTES,
    STAGE_BARRIERS_BYTES,
    SWIZZLE_ATOM_BYTES,
    TAP_ENTRY_BYTES,
    WARP,
)
from implicit_conv.kernels.gpu.variant import Variant

MAX_STAGES = 6  # of each ring; barriers for so many are always laid out


class SharedLayout(NamedTuple):
    """Counts, sizes in bytes and offsets, named as in the kernel's Call; `total` in bytes."""

    a_stages: int
    b_stages: int
    a_buffer: int
    a_stage: int
    b_stage: int
    a_load: int
    b_load: int
    a_at: int
    b_at: int
    staging_at: int
    rows_at: int
    tap_tables_at: int
    barriers_at: int
    total: int


def buffers(v: Variant, g: Geometry) -> int:
    """Number of phase buffers in a stage of A."""
    return g.phases_w if v.wide else 1


def buffer_rows(v: Variant, g: Geometry, b: int) -> int:
    """Number of rows that the load of phase buffer `b` delivers."""
    if not v.wide:
        return v.tile_m
    halo = schedule.halo_max(g) if v.permuted else schedule.column_halo(g, b)
    return v.tile_m + int(halo)


def shared_layout(v: Variant, g: Geometry, limit: int) -> SharedLayout | None:
    """The layout with as many stages as fit `limit` bytes, or None where two of each do not.

    A kernel on the CUDA cores has no stages, but the filters of a panel, and one by rows has rows
    of x, filters and staging tiles.
    """
    if v.strip or v.band:
        made = SharedLayout(*[0] * len(SharedLayout._fields))
        if v.strip:
            made = made._replace(total=filter_bytes(g, v))
        else:
            held, filters = (_round(size) for size in row_bytes(v))
            end = held + filters
            total = end + v.consumer_warps * v.staging_bytes
            made = made._replace(b_at=held, staging_at=end, total=total)
        return made if made.total <= limit else None
    count = buffers(v, g)
    rows = [buffer_rows(v, g, b) for b in range(count)]
    a_buffer, b_stage = _round(max(rows) * v.row_bytes), _round(v.tile_n * v.row_bytes)
    a_stage = count * a_buffer
    staging = v.consumer_warps * v.staging_bytes
    copiers = WARP * v.producer_warps  # threads; each writes one row of the table at a time
    table = 0 if v.producer == "tma" else -(-v.tile_m // copiers) * copiers * ROW_ENTRY_BYTES
    tap_tables = (g.S + g.phases_w) * TAP_ENTRY_BYTES if v.wide else 0
    fixed = staging + table + tap_tables + 2 * MAX_STAGES * STAGE_BARRIERS_BYTES
    stages = _stages(v, g, a_stage, b_stage, limit - fixed)
    if stages is None:
        return None
    a_stages, b_stages = stages
    b_at = a_stages * a_stage
    staging_at = b_at + b_stages * b_stage
    rows_at = staging_at + staging
    return SharedLayout(
        a_stages=a_stages,
        b_stages=b_stages,
        a_buffer=a_buffer,
        a_stage=a_stage,
        b_stage=b_stage,
        a_load=sum(rows) * v.row_bytes,
        b_load=v.tile_n * v.row_bytes,
        a_at=0,
        b_at=b_at,
        staging_at=staging_at,
        rows_at=rows_at,
        tap_tables_at=rows_at + table,
        barriers_at=rows_at + table + tap_tables,
        total=staging_at + fixed,
    )


def _stages(
    v: Variant, g: Geometry, a_stage: int, b_stage: int, room: int
) -> tuple[int, int] | None:
    """(stages of A, stages of B) in `room` bytes.

    Where every load of A has one load of B, both rings are as deep as fits. Otherwise A has two or
    three stages, and B enough for the taps of a load.
    """
    if not v.wide:
        count = min(MAX_STAGES, room // (a_stage + b_stage))
        return (count, count) if count >= 2 else None
    best = None
    for a_stages in (2, 3):
        b_stages = min(MAX_STAGES, (room - a_stages * a_stage) // b_stage)
        if b_stages >= (2 if best is None else min(MAX_STAGES, g.S + 1)):
            best = a_stages, b_stages
    return best


def region_names(layout: SharedLayout, count: int) -> dict[int, str]:
    """The names of the regions by their offsets, for messages of the interpreter."""
    if not layout.a_stages:
        if not layout.b_at:
            return {0: "filters"}
        return {0: "rows", layout.b_at: "filters", layout.staging_at: "staging tiles"}
    names = {
        layout.staging_at: "staging tiles",
        layout.rows_at: "row table",
        layout.tap_tables_at: "tap tables",
    }
    for stage in range(layout.a_stages):
        for b in range(count):
            names[stage * layout.a_stage + b * layout.a_buffer] = f"A stage {stage} buffer {b}"
    for stage in range(layout.b_stages):
        names[layout.b_at + stage * layout.b_stage] = f"B stage {stage}"
    at = layout.barriers_at
    for ring, stages in (("A", layout.a_stages), ("B", layout.b_stages)):
        for stage in range(stages):
            names[at], names[at + 8] = f"{ring} full[{stage}]", f"{ring} empty[{stage}]"
            at += STAGE_BARRIERS_BYTES
    return names


def _round(size: int) -> int:
    """`size` rounded up to whole swizzle atoms, so that a region begins where patterns repeat."""
    return int(schedule.ceil_div(size, SWIZZLE_ATOM_BYTES)) * SWIZZLE_ATOM_BYTES
