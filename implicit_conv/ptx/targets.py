"""Targets: what runs on which, and which have a form of tensor load (PTX ISA 9.7.9.25.5, 11.1)."""

from __future__ import annotations

import re

from implicit_conv.ptx.errors import LaunchError, PtxError, shortened

TARGET = re.compile(r"sm_(\d{1,4})([af]?)")


def number_of(target: str) -> tuple[int, str]:
    """(number, suffix) of a target; raise PtxError if it is none."""
    match = TARGET.fullmatch(target)
    if match is None:
        raise PtxError(f"{shortened(target)!r} is no target; sm_90a is")
    return int(match[1]), match[2]


def check_target(compiled: str, target: str) -> None:
    """Raise LaunchError unless text for `compiled` runs on `target` (PTX ISA 11.1, .target)."""
    (made, suffix), (runs, variant) = number_of(compiled), number_of(target)
    fits = {
        "": runs >= made,
        "a": target == compiled,
        "f": made // 10 == runs // 10 and runs >= made and variant != "",
    }[suffix]
    if not fits:
        raise LaunchError(f"PTX for {compiled} does not run on {target}; compile it for {target}")


def lacking(mode: str, cluster: bool, target: str) -> str:
    """Why a target has no tensor load of a mode; empty if it has one.

    `cluster`: the load goes to ``.shared::cluster``, to several blocks, or to L2 alone.
    """
    number, suffix = number_of(target)
    if mode in ("tile", "im2col"):
        has, words = number >= 90, "sm_90 or later"
    elif mode == "im2col::w" and not cluster:
        has, words = number >= 100, "sm_100 or later"
    else:
        has, words = number // 10 in (10, 11) and suffix != "", "an a/f variant of sm_10x or sm_11x"
    place = " to .shared::cta" if mode == "im2col::w" and not cluster else ""
    return "" if has else f"{mode}{place} exists on {words}, not on {target}"
