"""The candidates of a plan as HTML, for notebooks."""

from __future__ import annotations

from html import escape

from implicit_conv.operators.brief import Facts, brief

WIDTH = 240  # pixels of the bar of the longest time
BAR = '<div style="width:{:.0f}px;height:0.8em;background:currentColor;opacity:{}"></div>'


def table(facts: Facts) -> str:
    """The lines of `explain`, each candidate with a bar as long as its time, and what is refused.

    What runs comes first, and is marked. Colours are those of the page, light or dark.
    """
    times = [each["milliseconds"] for each in facts["candidates"]]
    longest, head = max(times) or 1.0, ("", "kernel", "estimate", "")
    rows = ["<tr>" + "".join(f"<th>{name}</th>" for name in head) + "</tr>"]
    for number, (each, time) in enumerate(zip(facts["candidates"], times, strict=True)):
        mark, style, opacity = ("", "", 0.3) if number else ("▶ runs", "font-weight:bold", 0.8)
        bar = BAR.format(WIDTH * time / longest, opacity)
        rows.append(_row(style, mark, escape(each["kernel"]), f"{time:.3f} ms", bar))
    for each in facts["refused"]:
        names = (escape(each[key]) for key in ("kernel", "reason"))
        rows.append(_row("opacity:0.7", "refused", *names))
    lines = escape(f"{facts['problem']}\n{brief(facts)}")
    return f"<pre>{lines}</pre><table>{''.join(rows)}</table>"


def _row(style: str, *cells: str) -> str:
    """A row of four columns, the last cell of which may be wide."""
    *first, last = (f">{cell}</td>" for cell in cells)
    start, wide = '<td style="text-align:left"', f' colspan="{5 - len(cells)}"'
    return f'<tr style="{style}">{"".join(start + cell for cell in first)}{start}{wide}{last}</tr>'
