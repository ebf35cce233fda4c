"""What stands first of many records: the bars of the chart, and the rows of README's table.

Of each kind of work they show where we compare worst: the smallest mean of any record, and the
smallest ratio on any layer. These may be of two records, whose machine, layout and rivals differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from perf.machines import machine_of
from perf.overviews import Overview, overviews_of, settings_of
from perf.record import Record
from perf.tables import is_network, is_plain, suite_title, unusual_words

MOST = 8  # bars of the chart

WORK = {  # suites that are one kind of work, and what README calls it
    **dict.fromkeys(("audio", "conv1d"), "signals and audio"),
    **dict.fromkeys(("transposed", "upsampling"), "upsampling, transposed"),
    **dict.fromkeys(("aspp", "first", "pixel"), "first, dilated, one-pixel layers"),
    **dict.fromkeys(("small", "tensors"), "small calls"),
    "conv3d": "volumes",
    "changing": "sizes that change",
    "int8": "networks, uint8 x int8",
    "models": "whole models",
    "compiled": "whole models, compiled",
}


class Least(NamedTuple):
    """Where a kind of work compares worst: with its only rival, or the fastest on each layer."""

    work: str
    mean: Overview  # of the record whose mean is the smallest
    worst: Overview  # of the record with the smallest ratio on a layer

    @property
    def elsewhere(self) -> str:
        """The machine of the worst layer, if it is not that of the mean."""
        found = machine_of(self.worst.record)
        return "" if found == machine_of(self.mean.record) else found


def least(records: Sequence[Record], work: Callable[[Record], str]) -> list[Least]:
    """Where each kind of work compares worst, in any of these records; the smallest mean first."""
    kinds: dict[str, list[Overview]] = {}
    for record in records:
        for found in overviews_of(record)[:1]:
            kinds.setdefault(work(record), []).append(found)
    rows = [
        Least(name, min(found, key=lambda one: one.ratio), min(found, key=lambda one: one.worst))
        for name, found in kinds.items()
    ]
    return sorted(rows, key=lambda row: row.mean.ratio)


def chart(records: Sequence[Record]) -> list[Least]:
    """The bars of the chart: networks in float32, one image and one thread on a CPU.

    Of more than MOST networks it shows those that compare worst, and if there is none, all suites.
    """
    networks = [record for record in records if is_in_chart(record)]
    return (least(networks, suite_title) or least(records, suite_title))[:MOST]


def table(records: Sequence[Record]) -> list[Least]:
    """The rows of README's table: all work on a CPU but that of the chart, if a rival is faster
    anywhere. If that leaves nothing, all there is.
    """
    wanted = [record for record in records if is_of_cpu(record) and not is_in_chart(record)]
    rows = [row for row in least(wanted, work_of) if row.worst.worst < 1]
    return rows or least(records, work_of)


def is_of_cpu(record: Record) -> bool:
    """Whether a run is of a CPU, and came to its end."""
    return bool(record["complete"]) and not record["machine"].get("gpu")


def is_in_chart(record: Record) -> bool:
    """Whether a run is of a network as the chart shows them."""
    standard = settings_of(record)["precision"] == "standard"
    return is_of_cpu(record) and is_network(record) and is_plain(record) and standard


def work_of(record: Record) -> str:
    """The kind of work of a run: all networks are one kind, and so are both gradients."""
    settings = settings_of(record)
    if settings["operator"] in ("dgrad", "wgrad"):
        return "gradients"
    if is_network(record):
        fast = [settings["precision"]] if settings["precision"] != "standard" else []
        return ", ".join(["networks", *fast, *unusual_words(record)])
    return WORK.get(settings["suite"], suite_title(record))
