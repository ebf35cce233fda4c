"""What stands first of many records: the bars of the chart, and the rows of README's table.

The rules look at what was measured. Where one of several results has to stand for them, it is the
least favourable one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from perf.layers import KINDS
from perf.machines import generation_of, machine_of
from perf.overviews import Overview, overviews_of, rivals_of, settings_of
from perf.record import Record
from perf.tables import is_network, is_plain, suite_title

MOST = 8  # bars of the chart, and rows of the table


def chart(runs: Sequence[Record]) -> list[Overview]:
    """The bars of the chart: networks in float32, one image and one thread, at most MOST bars.

    - Calls with other options, such as precision "fast", are left out, and so are records that
      name no generation of their CPU.
    - Of several records of a network on a machine, the one with the most rivals counts.
    - The bar of a record with several rivals is the fastest of them on each layer.
    - Records with several rivals come first, then networks that were measured on several machines,
      else the order of suites.

    If no record is of such work, all runs are candidates.
    """
    wanted = [record for record in runs if is_wanted(record)]
    best: dict[tuple[str, str], Record] = {}
    for record in wanted or runs:
        key = suite_title(record), machine_of(record)
        if key not in best or len(rivals_of(record)) > len(rivals_of(best[key])):
            best[key] = record
    networks = [network for network, _ in best]

    def place(key: tuple[str, str]) -> tuple[Any, ...]:
        return len(rivals_of(best[key])) < 2, -networks.count(key[0]), networks.index(key[0])

    order = sorted(best, key=place)
    return [found for key in order for found in overviews_of(best[key])[:1]][:MOST]


def is_wanted(record: Record) -> bool:
    """Whether a run is of a network as the chart shows them."""
    plain = is_network(record) and is_plain(record) and record["complete"]
    standard = settings_of(record)["precision"] == "standard"
    return plain and standard and generation_of(record) is not None


def table(runs: Sequence[Record]) -> list[Overview]:
    """The rows of README's table: what the chart leaves out, at most MOST kinds of work.

    Those are networks with other batches, threads or dtypes, and each other operator or suite but
    layers of one kind, on a CPU. Of each kind of work the least favourable record counts, against
    its only rival or the fastest on each layer. If that leaves nothing, all runs count.
    """
    wanted = [record for record in runs if settings_of(record)["suite"] not in KINDS]
    wanted = [record for record in wanted if not record["machine"].get("gpu")]
    others = [record for record in wanted if not (is_plain(record) and is_network(record))]
    least: dict[tuple[str, ...], Overview] = {}
    for record in others or runs:
        for found in overviews_of(record):
            key = kind_of(record)
            if key not in least or found.ratio < least[key].ratio:
                least[key] = found
    return [*least.values()][:MOST]


def kind_of(record: Record) -> tuple[str, ...]:
    """The kind of work of a run: networks are one kind, and so are both gradients."""
    settings = settings_of(record)
    suite = "network" if is_network(record) else settings["suite"]
    operator = "gradient" if settings["operator"] in ("dgrad", "wgrad") else settings["operator"]
    return operator, suite, *(str(settings[name]) for name in ("dtype", "batch", "threads"))
