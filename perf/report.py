"""``perf report``: runs as docs/speed.md with its pictures, and as the README's table."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from perf import plots, tables
from perf.record import Record, told

BEGIN, END = "<!-- perf: written by `python -m perf report` -->", "<!-- /perf -->"
COMMAND = "python -m perf report perf/records/*.json --docs docs --readme README.md"
PAGE, PICTURES = "speed.md", "speed"  # inside the folder of documents
LEFT_OUT = ("GFLOP/s", "GB/s", "scratch KiB", "spread")  # columns that the page does not show

INTRODUCTION = f"""\
# Speed

Do not edit this page: `python -m perf report` writes it from the records in `perf/records`.
`python -m perf run` makes a record on your machine. The whole command is

```sh
{COMMAND}
```

- **call** is `conv2d(x, w)`. Every call packs the filter: it rearranges w, or transforms it for
  Winograd, as the kernel reads it. **plan** is `plan(x, packed)`: the filter is packed once,
  before the clock starts.
  Runs of other operators time their functions in the same way.
- A rival has a process of its own, equal arrays and as many threads as ours. Functions take turns
  in random order, and each allocates its output. A process that is not timed sleeps: its thread
  pool may spin after a call, and nobody is timed before it stops. Runs that name no process of a
  rival are older and timed torch in the process of ours.
- **torch** runs its oneDNN kernels. Its gradients are those of `convolution_backward` with one
  output asked for, and its uint8 x int8 is `onednn.qconv2d_pointwise`, whose filter is packed
  before the clock starts.
- **onnxruntime**, **ncnn** and **opencv** (its module dnn) run a network of one convolution whose
  filter is a constant. They pack it as they load the network, so that they compare with plan.
- A ratio is a rival's time over ours, the median over the rounds: above 1, ours is faster. The mean
  of a suite is the geometric mean over its layers. The worst layer is that of call, or of plan
  where a rival compares with plan alone.
- Before a function is timed, its result is compared with a float64 reference.
- **fast** in a title is the precision of call and plan, which allows Winograd with large tiles, as
  inference engines use them unasked; other runs have precision `"standard"`.
- **FMA peak** is the rate that the run measured on its threads; it tells machines apart.
- **noise floor** is how far the ratio of `call` to itself lies from 1 (90 % quantile of layers).
- **of peak** is the share of the FMA rate that the same run measured. It counts the operations of
  the direct sum; Winograd needs fewer, so it may exceed 100 %. **of copy** is the share of the
  measured copy bandwidth; it counts x, w and y once each.
- A layer is named by its filter, stride, channels and input: `3x3/2 128-256 @28` has a 3 x 3
  filter, stride 2, 128 input and 256 output channels and a 28 x 28 input. `dw 96` is depthwise
  with 96 channels, `g32` has 32 groups."""

Named = Sequence[tuple[str, Record]]


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("report", help="write records as docs/speed.md and README's table")
    parser.add_argument("records", nargs="+", type=Path)
    parser.add_argument("--docs", type=Path, help="write speed.md and its plots into this folder")
    parser.add_argument("--readme", type=Path, help="renew the table between its perf marks")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write what was asked for; exit status 0."""
    if not (options.docs or options.readme):
        raise ValueError("nothing to write: give a folder as --docs, a README as --readme, or both")
    named = sorted(
        ((path.stem, told(path)) for path in options.records), key=lambda pair: pair[1]["created"]
    )
    if options.readme:
        text = options.readme.read_text(encoding="utf-8")
        folder = options.docs or options.readme.parent / "docs"
        page_at = Path(os.path.relpath(folder / PAGE, options.readme.parent)).as_posix()
        options.readme.write_text(readme_text(text, named, page_at), encoding="utf-8")
    if options.docs:
        write_pages(named, options.docs)
    return 0


def write_pages(named: Named, folder: Path) -> None:
    """Write speed.md and its pictures into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PAGE).write_text(page(named), encoding="utf-8")
    write_pictures(named, folder / PICTURES)


def page(named: Named) -> str:
    """The text of speed.md: how to read it, one table of all runs, then each run."""
    runs = in_order(named)
    parts = [INTRODUCTION, picture(PICTURES), summary_table(runs, "")]
    return "\n\n".join([*parts, *(section(name, record) for name, record in runs)]) + "\n"


def section(name: str, record: Record) -> str:
    """One run: where and when, its summary, the table of its layers, its plots."""
    rows = [
        {heading: cell for heading, cell in row.items() if heading not in LEFT_OUT}
        for row in tables.run_rows(record)
    ]
    images = "\n".join(
        f'<img alt="{what}" width="400" align="top" src="{PICTURES}/{name}-{kind}.svg">'
        for kind, what in drawn(record).items()
    )
    facts = [*where_lines(record), *tables.summary_lines(record)]
    parts = [
        f'<a id="{name}"></a>\n\n## {tables.title_of(record)}',
        "\n".join(f"- {fact}" for fact in facts),
        tables.markdown(rows, left=2),
        images,
    ]
    return "\n\n".join(part for part in parts if part)


def where_lines(record: Record) -> list[str]:
    """Short lines on machine, versions, date and commit of a record."""
    machine, commit = record["machine"], record["commit"]["hash"]
    cpu = f"{machine['cpu']}, {machine['cores']} cores, {machine['vector_bits']}-bit vectors"
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    made = record["created"].replace("T", " ")
    return [
        f"machine: {machine['gpu'] or cpu}; {machine['system']}",
        f"versions: {versions}",
        f"measured: {made}, {f'commit {commit[:10]}' if commit else 'outside a git checkout'}",
        *rival_facts(record),
    ]


def rival_facts(record: Record) -> list[str]:
    """A line for each rival that ran in a process of its own."""
    return [
        f"{name} {found['version']}: a process of its own, {tables.threads_text(found['threads'])}"
        for name, found in record.get("rivals", {}).items()
    ]


def summary_table(runs: Named, page_at: str) -> str:
    """All runs with a rival as one Markdown table; suites link to their section of `page_at`."""
    found = [(name, overview) for name, record in runs for overview in tables.overviews_of(record)]
    links = [f"{page_at}#{name}" for name, _ in found]
    return tables.markdown(tables.overview_rows([one for _, one in found], links), left=4)


def picture(folder: str) -> str:
    """The overview as HTML."""
    return (
        '<img alt="A rival\'s time over ours, one bar a network, worst layer marked" width="800" '
        f'src="{folder}/overview.svg">'
    )


def readme_text(text: str, named: Named, page_at: str) -> str:
    """A README with a table of networks between its marks; `page_at` is speed.md.

    It shows runs of float32, one image and one thread, or all if there is none; of equal runs that
    on the fastest machine.

    Raises
    ------
    ValueError
        The text does not hold each mark exactly once.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the README must hold the lines {BEGIN!r} and {END!r} once each")
    found = networks(in_order(named))
    runs = [(name, record) for name, record in found if tables.is_plain(record)] or found
    fastest = {tables.task_of(record): (name, record) for name, record in reversed(runs)}
    table = "\n".join([BEGIN, summary_table([*reversed(fastest.values())], page_at), END])
    return re.sub(re.escape(BEGIN) + ".*" + re.escape(END), lambda _: table, text, flags=re.DOTALL)


def networks(runs: Named) -> Named:
    """The runs of conv2d with floats on networks, or all runs if there is none."""
    return [pair for pair in runs if tables.is_network(pair[1])] or runs


def in_order(named: Named) -> list[tuple[str, Record]]:
    """The runs that have rows, in the order of suites."""
    runs = [pair for pair in named if pair[1]["kind"] == "run" and pair[1]["rows"]]
    return sorted(runs, key=lambda pair: tables.suite_order(pair[1]))


def drawn(record: Record) -> dict[str, str]:
    """The plots of a run: ending of the file's name -> what it shows."""
    names = ", ".join(tables.rivals_of(record))
    ratios = {"ratios": f"time of {names} over ours, layer by layer"}
    return {**(ratios if names else {}), "roofline": "roofline"}


def write_pictures(named: Named, folder: Path) -> None:
    """Write overview.svg, which shows `networks`, and NAME-ratios.svg and NAME-roofline.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = in_order(named)
    shown = [record for _, record in networks(runs)]
    overviews = [found for record in shown for found in tables.overviews_of(record)]
    (folder / "overview.svg").write_text(str(plots.overview(overviews)), encoding="utf-8")
    figures = {"ratios": plots.ratio_bars, "roofline": plots.roofline}
    for name, record in runs:
        for kind in drawn(record):
            path = folder / f"{name}-{kind}.svg"
            path.write_text(str(figures[kind](record)), encoding="utf-8")
