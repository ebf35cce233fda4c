"""The PTX text of a tensor copy with its operands."""

from __future__ import annotations

from collections.abc import Sequence

TARGETS = {  # oldest target of each form with a .shared::cta destination
    "im2col": "sm_90",
    "w": "sm_100",
    "w128": "sm_100a",
}
INFIXES = {"im2col": "im2col", "w": "im2col::w", "w128": "im2col::w::128"}


def instruction(
    mode: str,
    coords: Sequence[int],
    offsets: Sequence[int] | None,
    w_halo: int,
    w_offset: int,
    dst: str = "dst",
) -> str:
    """The load instruction of PTX ISA 9.7.9.25.5 for one copy.

    Parameters
    ----------
    mode : {"im2col", "w", "w128"}
    coords, offsets : sequence of int
        In row-major order; PTX gets them reversed, {c, w, h, n} and {w, h}.
    w_halo, w_offset : int
        Operands of the wide modes.
    dst : str
        The destination operand.
    """
    name = (
        f"cp.async.bulk.tensor.{len(coords)}d.shared::cta.global.{INFIXES[mode]}"
        ".mbarrier::complete_tx::bytes"
    )
    if mode == "im2col":
        info = tuple(offsets or (0,) * (len(coords) - 2))[::-1]
    else:
        info = (w_halo, w_offset)
    return f"{name} [{dst}], [map, {_vector(coords[::-1])}], [mbar], {_vector(info)};"


def _vector(values: Sequence[int]) -> str:
    return "{" + ", ".join(map(str, values)) + "}"
