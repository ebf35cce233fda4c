"""Pages of records as Markdown, which GitHub shows and MyST reads: an index and a page a suite."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from perf import highlights, overviews, plots, tables
from perf.layers import SUITES
from perf.machines import machine_line, machine_of
from perf.record import Record
from perf.tables import Named
from perf.terminal import Rows

WRITTEN = "<!-- `python -m perf report` writes this page; do not edit it. -->"
INDEX, CHART, RIVALS = "index.md", "overview.svg", "rivals.md"
LEFT_OUT = ("GFLOP/s", "GB/s", "scratch KiB", "spread")  # columns of layers that pages do not show

OPENING = """\
Bars show how many times as long the fastest rival takes as we do: right of 1, ours is faster. They
are networks in float32, one image and one thread; of more than eight, those that compare worst.
[On your CPU](on-your-cpu.md) has all kinds of work, by families of CPUs."""
BARS = """\
A bar is a network on the CPU where it compares worst; a diamond is its worst layer on any. Of
several rivals each layer takes the fastest within [our error bound]({}rivals.md)."""

RACE = """\
Time over ours of each rival and of the fastest on each layer: the geometric mean and the worst
layer, with the number of layers. Above 1, ours is faster. [How to read
it](index.md#how-to-read-it).

**Fastest of all** takes for each layer the rival with the least ratio: to *plan* of an engine, to
*call* of torch, scipy and numpy. The filter of an engine is packed before the clock starts, and so
is that of plan; call packs it each time, as torch does. An engine may write each result into the
same memory, where ours makes a new array.

A rival counts on a layer where its x and y are plain arrays in the layout of the run, and its error
is within our precision's bound: 16 units of eps * sum|x||w|, 1024 of precision "fast". Others are
shown with their layers, and not counted. Precision "standard" also bounds errors by the pixels of
each output's window. So each result is compared once more with one pixel of x a million times as
large: there ncnn, which computes 3 x 3 layers by Winograd with large tiles, is wrong by up to 16 %
of its largest products (2,700,000 units of eps, where 64 are allowed and the others have at most
31), and so are we, by 9 %, with precision "fast".
Of records before November 27 this is not known, and not asked.

- onnxruntime, ncnn and opencv have NCHW, and xnnpack (by LiteRT) NHWC; openvino has both.
- **onednn** is its C interface, the newest package, whose CPU runtime is SYCL: a call takes some 20
  us more. **onednn-openmp** is the last package with OpenMP, version 3.2.

One command, in a checkout on an idle machine, measures three suites in both layouts, and prints
such a table; a run that was interrupted goes on:

```sh
pip install '.[torch,rivals]'
python -m perf race -o races
```

It takes some 75 minutes; `--suite resnet50` some 12."""

TABLE = """\
## Networks and machines

Each cell is a rival with the geometric mean over the layers, and the worst layer in parentheses;
its link leads to the layers. Machines are known by their generation: Zen 4 is an AMD EPYC 9004,
Zen 5 an EPYC 9005, *Zen 5, AVX2* the same with vectors of 256 bits, and *AMD EPYC* any. Everything
runs on one thread unless a row says more."""

READING = """\
## How to read it

- **call** is `conv2d(x, w)`: each call packs the filter, which means that it rearranges w, or
  transforms it for Winograd. **plan** is `plan(x, packed)`: the filter was packed before the clock
  starts. Runs of other operators time their functions in the same way.
- **A ratio** is a rival's time over ours, the median over rounds. torch is compared with call, and
  with plan; engines with plan alone, because they pack the filter before the clock starts:
  onnxruntime, openvino, xnnpack, onednn (its C interface), ncnn, and opencv (its module dnn). The
  worst layer is that of call, or of plan for engines.
- **A layer** is named by its filter, stride, channels and input: `3x3/2 128-256 @28` has a 3 x 3
  filter, stride 2, 128 input and 256 output channels and a 28 x 28 input. `dw 96` is depthwise
  with 96 channels, `g32` has 32 groups. Suites of several operators say the model and the operator
  before it: `dgrad` is an input gradient, `wgrad` a weight gradient.
- **of peak** is the share of the FMA rate that the same run measured, and **of copy** the share of
  the copy bandwidth, counting x, w and y once each. Plots show the larger one, the share *of the
  limit*. It may exceed 1: Winograd needs fewer operations than the direct sum, which is what
  counts here, and small arrays stay in caches.
- **noise floor** is how far the ratio of call to itself lies from 1 (90 % quantile of layers). A
  record whose floor exceeds 5 % was disturbed, and no page is made of it.
- **fast** in a title is the precision that allows Winograd with large tiles, which inference
  engines use unasked. All else has precision `"standard"`."""

METHOD = """\
## How it was measured

- A rival has a process of its own, equal arrays and as many threads as ours. Functions take turns
  in random order, and each allocates its output. Rounds are shared by three sets of arrays, whose
  pages decide up to 25 % of a time; runs before 2026-11-26 have one set. A process that is not
  timed sleeps, because its thread pool may spin after a call. Runs that name no version beside a
  rival are older, and timed torch in the process of ours.
- Before a function is timed, its result is compared with a float64 reference.
- torch runs its oneDNN kernels. Its gradients are those of `convolution_backward` with one output
  asked for. Its uint8 x int8 is `onednn.qconv2d_pointwise`, whose filter was packed before.
- A figure holds for its machine, versions and commit, which stand with each run. Machines had
  two CPUs. **Nothing was measured on 64-bit Arm**, and of GPUs only an H100 and an H200 have
  run the kernels ([what ran](../how-to/gpu.md))."""

YOURS = """\
## Measure your own machine

`implicit-conv bench` takes a minute, and `implicit-conv tune` measures candidates of one shape. In
a checkout, on an idle machine,

```sh
python -m perf run --suite resnet50 --threads 1 --against torch -o perf/records/mine.json
```

makes a record, and this command writes these pages and README's chart and table from all records:

```sh
{command}
```

`python -m perf race` takes [all rivals](rivals.md). Suite `changing` measures what a size costs
that no call had before, `bursts` calls on several threads after a pause, `models` and `tensors`
calls of torch with and without `enable()` (`pip install '.[torch,models]'`)."""


def index(runs: Named, command: str, more: Sequence[str]) -> str:
    """The text of index.md; `command` writes the pages, and `more` names those beside suites'."""
    bars = highlights.chart([record for _, record in runs])
    picture = f"![{plots.overview_words(bars)}]({CHART})"
    chart = [OPENING, bars_words(bars, ""), picture, behind(runs)] if bars else []
    parts = [
        f"# Speed\n\n{WRITTEN}",
        *chart,
        TABLE,
        machines_table(runs),
        READING,
        METHOD,
        YOURS.format(command=command),
        "\n".join(["```{toctree}", ":hidden:", "", *suites(runs), *more, "```"]),
    ]
    return "\n\n".join(parts) + "\n"


def rivals_page(runs: Named) -> str:
    """The text of rivals.md: a table for each machine that has runs with several rivals; empty if
    none has.
    """
    several = [record for _, record in runs if overviews.fastest_of(record)]
    tabled = {
        machine: tables.rivals_rows([one for one in several if machine_of(one) == machine])
        for machine in dict.fromkeys(map(machine_of, several))
    }
    shown = [f"{machine}:\n\n{tables.markdown(rows, left=1)}" for machine, rows in tabled.items()]
    title = f"# Speed: all rivals\n\n{WRITTEN}"
    return "\n\n".join([title, *shown, RACE]) + "\n" if shown else ""


def bars_words(bars: Sequence[highlights.Least], folder: str) -> str:
    """What one or more bars show, and their rivals: most of them first; `folder` has rivals.md."""
    groups: dict[str, list[str]] = {}
    for bar in sorted(bars, key=lambda bar: -len(bar.mean.rivals)):
        rivals = bar.mean.rivals
        met = listed(rivals) if len(rivals) > 1 else f"{rivals[0]} alone"
        groups.setdefault(met, []).append(bar.work)
    *before, (met, rest) = groups.items()
    others = listed(rest) if len(rest) == 1 else "the others" if before else "all networks"
    told = [f"of {listed(networks)}: {several}" for several, networks in before]
    return f"{BARS.format(folder)} Rivals {'; '.join([*told, f'of {others}: {met}'])}."


def listed(words: Sequence[str]) -> str:
    """Words with commas, and "and" before the last of several."""
    return f"{', '.join(words[:-1])} and {words[-1]}" if len(words) > 1 else words[0]


def behind(runs: Named) -> str:
    """How often ours is slower, in a sentence."""
    ratios = [
        row["ratios"][overviews.ratio_key(rival, overviews.ours_against(rival)[0])]
        for _, record in runs
        for rival in overviews.rivals_of(record)
        for row in record["rows"]
        if rival in row["timings"]
    ]
    slower = sum(ratio < 1 for ratio in ratios)
    return (
        f"In all records, ours is slower than a rival in {slower} of {len(ratios):,} comparisons "
        "of a layer, with call or, for engines, with plan."
    )


def machines_table(runs: Named) -> str:
    """One row a work, one column a machine; cells link to the sections of suites' pages."""
    machines = [*dict.fromkeys(machine_of(record) for _, record in runs)]
    rows: dict[str, dict[str, str]] = {}
    for _, record in runs:
        words = ", ".join([tables.suite_title(record), *tables.settings_words(record)])
        work = words.removesuffix(", 1 thread")
        row = rows.setdefault(work, {"work": work, **dict.fromkeys(machines, "")})
        cell = ", ".join(
            f"{found.rival} {found.ratio:.2f} ({found.worst:.2f})"
            for found in overviews.overviews_of(record)
        )
        row[machine_of(record)] = f"[{cell or 'no rival'}]({address(record)})"
    return tables.markdown([*rows.values()], left=1 + len(machines))


def suites(runs: Named) -> list[str]:
    """The suites of runs, which name the pages."""
    return [*dict.fromkeys(suite_of(record) for _, record in runs)]


def suite_of(record: Record) -> str:
    """The suite of a run, as the name of a file."""
    return str(record["settings"]["suite"])


def heading(record: Record) -> str:
    """The heading of a run, different from that of any other run on its machine."""
    settings = tables.settings_words(record)
    return ", ".join([tables.suite_title(record), machine_of(record), *settings])


def address(record: Record) -> str:
    """The link to a run's section, from the index; anchors are those of GitHub and MyST."""
    anchor = re.sub(r"[^\w\- ]", "", heading(record).lower()).replace(" ", "-")
    return f"{suite_of(record)}.md#{anchor}"


def page(suite: str, runs: Named) -> str:
    """The text of a suite's page: a section a run."""
    title = SUITES[suite][0] if suite in SUITES else suite
    opening = "Rivals' times over ours. [How to read it](index.md#how-to-read-it)."
    found = [section(name, record) for name, record in runs if suite_of(record) == suite]
    return "\n\n".join([f"# Speed: {title}\n\n{WRITTEN}", opening, *found]) + "\n"


def section(name: str, record: Record) -> str:
    """One run: where and when, its rivals, the plot, and its layers, which open on a click."""
    rows = [
        {title: cell for title, cell in row.items() if title not in LEFT_OUT}
        for row in tables.run_rows(record)
    ]
    rivals = overviews.overviews_of(record)
    picture = f"![{plots.layers_words(record)}]({name}.svg)" if rivals else ""
    facts = [*where_lines(record), *tables.run_lines(record)]
    parts = [
        f"## {heading(record)}",
        measured(record),
        "".join(f"**{line[0].upper()}{line[1:]}.**" for line in overviews.fastest_line(record)),
        "\n".join(f"- {line[0].upper()}{line[1:]}" for line in overviews.network_lines(record)),
        tables.markdown(rivals_table(record), left=1) if rivals else "",
        picture,
        "<details>\n<summary>Each layer, versions and machine</summary>",
        tables.markdown(rows, left=2),
        "\n".join(f"- {fact}" for fact in facts),
        "</details>",
    ]
    return "\n\n".join(part for part in parts if part)


def other_page(
    suite: str,
    runs: Named,
    reading: str,
    rows: Callable[[Record], Rows],
    facts: Callable[[Record], list[str]],
) -> str:
    """The text of the page of a suite of other things than layers: a section a run."""
    parts = [f"# Speed: {tables.TITLES[suite]}\n\n{WRITTEN}", reading]
    for _, record in runs:
        versions = [
            f"{name} {found['version']}" for name, found in record.get("rivals", {}).items()
        ]
        rivals = [f"rivals: {', '.join(versions)}"] if versions else []
        told = [*facts(record), *rivals, *where_lines(record)]
        parts += [f"## {heading(record)}", measured(record), tables.markdown(rows(record), left=1)]
        parts += ["\n".join(f"- {fact}" for fact in told)]
    return "\n\n".join(parts) + "\n"


def measured(record: Record) -> str:
    """When, at which commit and on which machine, in one sentence."""
    machine, commit = record["machine"], record["commit"]
    changed = " with uncommitted changes" if commit["changed"] else ""
    at = f"at commit {commit['hash'][:10]}{changed}" if commit["hash"] else "outside a git checkout"
    peak = tables.fma_rate(record)
    facts = [
        f"Measured on {record['created'][:10]} {at}, on {machine['gpu'] or machine['cpu']}",
        *([f"FMA peak {peak:.0f} GFLOP/s"] if peak else []),
        *([] if record["noise_floor"] is None else [f"noise floor {record['noise_floor']:.1%}"]),
    ]
    return "; ".join(facts) + ("." if record["complete"] else "; **interrupted before its end**.")


def rivals_table(record: Record) -> Rows:
    """One row a rival: its version, if it had a process of its own, and how it compares."""
    versions = {name: f" {found['version']}" for name, found in record.get("rivals", {}).items()}
    return [
        {
            "rival": f"{found.rival}{versions.get(found.rival, '')}",
            "layers": str(found.layers),
            **tables.means_cells(found),
        }
        for found in overviews.overviews_of(record)
    ]


def where_lines(record: Record) -> list[str]:
    """Short lines on machine, versions, time and load of a run."""
    load = {when: average for when, average in record["load"].items() if average is not None}
    averages = ", ".join(f"{average:.1f} {when}" for when, average in load.items())
    return [
        f"machine: {machine_line(record)}",
        f"versions: {', '.join(f'{name} {one}' for name, one in record['versions'].items())}",
        f"begun: {record['created'].replace('T', ' ')}",
        *([f"load average, with that of the run: {averages}"] if load else []),
    ]
