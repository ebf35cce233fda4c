"""Numbers of the tables of costs, changed for a test."""

from __future__ import annotations

from typing import Any

from implicit_conv.cpu.machine.arch import cpu_arch, nearest_costs


def change(patch: Any, group: str, **values: float) -> None:
    """Change numbers of a group in the table of this CPU and in those of CPUs that tests name; what
    they were returns with `patch`, a MonkeyPatch.
    """
    for costs in {cpu_arch().costs, *map(nearest_costs, (128, 256, 512))}:
        patch.setitem(vars(costs), group, getattr(costs, group)._replace(**values))
