"""The page "On your CPU": what each kind of work gives on each family of CPUs."""

from __future__ import annotations

from collections.abc import Sequence

from implicit_conv.cpu.machine.arch import nearest_costs
from implicit_conv.cpu.machine.costs import Costs
from perf.highlights import Least, is_of_cpu, least, work_of
from perf.machines import machine_of
from perf.pages import WRITTEN
from perf.record import Record
from perf.tables import markdown

PAGE = "on-your-cpu"
AVX2 = 256  # bits of its vectors
TEXT = """\
# On your CPU

{written}

Take the column that is most like your CPU. A cell has a rival's time over ours: the smallest mean
of any record, and in parentheses the smallest ratio on any layer. Above 1, ours is faster. The
rival is torch, or the fastest of several on each layer. An empty cell was not measured;
[every record](index.md#networks-and-machines) names its rivals, layers and date.

{table}

Work is in float32, one image and one thread, unless its name says more; *fast* is a
[precision](index.md#how-to-read-it). Column *{avx2}* has vectors of 256 bits, on CPUs whose AVX-512
was not used. Where the system did not tell a CPU's generation, its column has the maker's name
alone. The last row names the table of costs by which the planner chooses there.

**If no column is yours:**

- **AMD with AVX-512**, of any kind: the planner takes the costs of *{amd}*. AMD's
  columns are the best guess; clocks and caches of a desktop or laptop differ.
- **Intel with AVX-512**, with AMX or without: the costs of *{intel}*. AMX multiplies
  bfloat16 alone, so a CPU without it should have the same ratios in float32.
- **AVX2 without AVX-512**, as most laptops: the costs of *{avx2}*, which are {avx2_made}.
  Column *{avx2}* is the best guess.
- **64-bit Arm** (Apple, Graviton), **and x86 without AVX**: the costs of *{narrow}*, which are
  {narrow_made}. Arm was
  [emulated](../trust/reliability.md#64-bit-arm): results are right there, and by models of its
  cores inner loops are near the peak. Nothing was timed, so no ratio can be promised.

**Measure yours**, while nothing else runs:

- `implicit-conv bench` takes a minute.
- `print(plan.explain())` has a row *costs*, with the table that the planner took.
- `plan.tune()` measures the best candidates of a plan and [keeps the fastest](../how-to/tune.md),
  where no table fits your CPU. `python -m perf fit` writes a table.
- `python -m perf run --suite resnet50 --threads 1 --against torch -o perf/records/mine.json`, in a
  checkout, makes a record. [`perf report`](index.md#measure-your-own-machine) adds it here.
"""


def family_of(record: Record) -> str:
    """The family of a run's CPU: with narrower vectors than AVX-512, whatever its name."""
    return costs_of(record).name if is_avx2(record) else machine_of(record)


def is_avx2(record: Record) -> bool:
    """Whether a run had vectors of AVX2."""
    return bool(record["machine"]["vector_bits"] == AVX2)


def costs_of(record: Record) -> Costs:
    """The costs that the planner takes on the machine of a run."""
    machine = record["machine"]
    vendor = "GenuineIntel" if machine["cpu"].startswith("Intel") else ""
    return nearest_costs(machine["vector_bits"], vendor)


def page(records: Sequence[Record]) -> str:
    """The text of on-your-cpu.md; empty if no record is of a CPU."""
    families: dict[str, list[Record]] = {}
    for record in filter(is_of_cpu, records):
        families.setdefault(family_of(record), []).append(record)
    columns = {
        name: {row.work: row for row in least(own, work_of)} for name, own in families.items()
    }
    works = [row.work for row in least([*filter(is_of_cpu, records)], work_of)]
    rows = [
        {"work": work, **{name: cell(found.get(work)) for name, found in columns.items()}}
        for work in works
    ]
    rows += [{"work": "costs", **{name: costs_of(own[0]).name for name, own in families.items()}}]
    avx2, narrow = nearest_costs(AVX2), nearest_costs(AVX2 // 2)
    if not works:
        return ""
    return TEXT.format(
        written=WRITTEN,
        table=markdown(rows, left=1),
        amd=nearest_costs(2 * AVX2).name,
        intel=nearest_costs(2 * AVX2, "GenuineIntel").name,
        avx2=avx2.name,
        avx2_made=avx2.made,
        narrow=narrow.name,
        narrow_made=narrow.made,
    )


def cell(found: Least | None) -> str:
    """The smallest mean of a kind of work, and the smallest ratio."""
    return f"{found.mean.ratio:.2f} ({found.worst.worst:.2f})" if found else ""
