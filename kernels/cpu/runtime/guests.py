"""The team of another library, while it runs launches in place of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from implicit_conv.kernels.cpu.runtime.openmp import OpenMpTeam

GUESTS: list[OpenMpTeam] = []  # of this process: at most one


def use(other: OpenMpTeam | None) -> None:
    """Use another team in place of ours, in this process but not in forked children; None ends it.

    Launches that run on it go on.
    """
    GUESTS[:] = [] if other is None else [other]


def guest_name() -> str | None:
    """The name of the team that is used in place of ours; None if ours is used."""
    return next((guest.name for guest in GUESTS), None)
