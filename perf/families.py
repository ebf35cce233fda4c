"""The page "On your CPU": what each kind of work gives on each family of CPUs."""

from __future__ import annotations

from collections.abc import Sequence

from implicit_conv.cpu.machine.arch import nearest_costs
from implicit_conv.cpu.machine.costs import Costs
from perf import regret
from perf.highlights import is_of_cpu, least, work_of
from perf.machines import machine_of
from perf.pages import words
from perf.record import Record
from perf.tables import markdown

PAGE = "on-your-cpu.md"
AVX2 = 256  # bits of its vectors
INTEL = "GenuineIntel"


def family_of(record: Record) -> str:
    """The family of a run's CPU: that of its vectors if they are narrow, whatever its name."""
    narrow = record["machine"]["vector_bits"] == AVX2
    return costs_of(record).name if narrow else machine_of(record)


def costs_of(record: Record) -> Costs:
    """The costs that the planner takes on the machine of a run."""
    machine = record["machine"]
    vendor = INTEL if machine["cpu"].startswith("Intel") else ""
    return nearest_costs(machine["vector_bits"], vendor)


def page(records: Sequence[Record], regrets: Sequence[Record] = ()) -> str:
    """The text of the page, with records of `perf regret`; empty if no record of a CPU has a
    rival.
    """
    own = [record for record in records if is_of_cpu(record)]
    rows = {row.work: {"work": row.work} for row in least(own, work_of)}
    costs, choices = {"work": "costs"}, {"work": "choices"}
    for family in dict.fromkeys(map(family_of, own)):
        members = [record for record in own if family_of(record) == family]
        found = {row.work: row for row in least(members, work_of)}
        for work, row in rows.items():
            one = found.get(work)
            row[family] = f"{one.mean.ratio:.2f} ({one.worst.worst:.2f})" if one else ""
        costs[family] = costs_of(members[0]).name
        choices[family] = regret.words([one for one in regrets if family_of(one) == family])
    named = {"amd": nearest_costs(2 * AVX2), "intel": nearest_costs(2 * AVX2, INTEL)}
    named |= {"avx2": nearest_costs(AVX2), "intel_avx2": nearest_costs(AVX2, INTEL)}
    named["narrow"] = nearest_costs(AVX2 // 2)
    last = [choices, costs] if regrets else [costs]
    table = markdown([*rows.values(), *last], left=1)
    return words(PAGE, table=table, **named) if rows else ""
