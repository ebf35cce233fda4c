"""The PTX text of a tensor copy with its operands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from implicit_conv.ptx.machine.reductions import REDUCED_TYPES

INFIXES = {"tiled": "tile", "im2col": "im2col", "w": "im2col::w", "w128": "im2col::w::128"}
DIRECTIONS = ("load", "multicast", "prefetch", "store", "reduce")
CLUSTER_DIRECTIONS = ("multicast", "prefetch")  # not of .shared::cta
REDUCTIONS = tuple(REDUCED_TYPES)


def mode_of(text: str) -> str:
    """Our word for a mode, which `text` may name by PTX's, such as ".im2col::w"; else `text`.

    All that takes a mode asks here, the page of the explorer too.
    """
    word = str(text).lower().removeprefix(".")
    for mode, infix in INFIXES.items():
        if word in (mode, infix):
            return mode
    return text


def mode_words(modes: Iterable[str]) -> str:
    """Modes for a message, by PTX's words, with ours where they differ."""
    pairs = ((INFIXES.get(mode, mode), mode) for mode in modes)
    return ", ".join(word if word == mode else f"{word} (or {mode})" for word, mode in pairs)


def instruction(
    mode: str,
    coords: Sequence[int],
    offsets: Sequence[int] | None = None,
    w_halo: int = 0,
    w_offset: int = 0,
    *,
    dst: str = "dst",
    direction: str = "load",
    reduction: str = "add",
) -> str:
    """The instruction of PTX ISA 9.7.9.25.5 for one copy.

    Operands are row-major, and reversed in PTX: {c, w, h, n} and {w, h}. The others are those of
    `TensorMap.ptx`.

    Raises
    ------
    ValueError
        The direction or the reduction is unknown, or im2col::w is stored.
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"direction {direction!r} is unknown; choose from {', '.join(DIRECTIONS)}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction {reduction!r} is unknown; choose from {', '.join(REDUCTIONS)}")
    head, where = f"tensor.{len(coords)}d", f"[map, {_vector(coords[::-1])}]"
    if direction in ("store", "reduce"):
        if mode not in ("tiled", "im2col"):
            raise ValueError(f"mode {INFIXES[mode]} cannot store; only tile and im2col do")
        form = "tile" if mode == "tiled" else "im2col_no_offs"
        copy, what = "cp.async", ""
        if direction == "reduce":
            copy, what = "cp.reduce.async", f".{reduction}"
        return f"{copy}.bulk.{head}.global.shared::cta{what}.{form}.bulk_group {where}, [{dst}];"
    info = _info(mode, coords, offsets, w_halo, w_offset)
    if direction == "prefetch":
        return f"cp.async.bulk.prefetch.{head}.L2.global.{INFIXES[mode]} {where}{info};"
    space, suffix, mask = "cta", "", ""
    if direction == "multicast":
        space, suffix, mask = "cluster", ".multicast::cluster", ", ctaMask"
    return (
        f"cp.async.bulk.{head}.shared::{space}.global.{INFIXES[mode]}.mbarrier::complete_tx::bytes"
        f"{suffix} [{dst}], {where}, [mbar]{info}{mask};"
    )


def _info(
    mode: str,
    coords: Sequence[int],
    offsets: Sequence[int] | None,
    w_halo: int,
    w_offset: int,
) -> str:
    """The operand im2colInfo, after a comma; a box has none."""
    if mode == "tiled":
        return ""
    if mode == "im2col":
        return f", {_vector(tuple(offsets or (0,) * (len(coords) - 2))[::-1])}"
    return f", {_vector((w_halo, w_offset))}"


def _vector(values: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"
