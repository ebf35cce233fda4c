"""The table of a plan in a notebook: its rows are the candidates and refusals of `explain`."""

import re
import xml.etree.ElementTree as ET

import pytest

from implicit_conv import plan_conv2d
from implicit_conv.operators.table import WIDTH, table

SHAPES = (1, 64, 56, 56), (64, 64, 3, 3)
LINE = re.compile(r"^ +([\d.]+) ms  (.+?)(?:; .*)?$", re.MULTILINE)  # of a candidate in `explain`


def cells(html):
    """The text of each cell, and the width of the bar of each row."""
    rows = ET.fromstring(f"<x>{html}</x>").findall("table/tr")
    texts = [[cell.text or "" for cell in row] for row in rows]
    bars = [re.findall(r"width:(\d+)px", ET.tostring(row, "unicode")) for row in rows]
    return texts, [int(*bar) if bar else None for bar in bars]


@pytest.mark.parametrize("device", ["cpu", "sm_90a"])
def test_the_table_has_what_explain_lists(device):
    x, w = (1, 56, 56, 64), (64, 64, 3, 3)
    plan = plan_conv2d(x, w, padding=1, dtype="bfloat16", layout="NHWC", device=device)
    (head, *rows), (_, *bars) = cells(plan._repr_html_())
    facts = plan.facts()
    assert head == ["", "kernel", "estimate", ""]
    able = [row for row in rows if row[0] != "refused"]
    assert [row[0] for row in able] == ["▶ runs"] + [""] * (len(able) - 1)
    assert able[0][1] == facts["kernel"] and len(able) > 1
    times = [float(row[2].removesuffix(" ms")) for row in able]
    exact = [each["milliseconds"] for each in facts["candidates"]]
    assert times == pytest.approx(exact, abs=6e-4)
    widths = [WIDTH * time / max(exact) for time in exact]
    assert widths == pytest.approx(bars[: len(able)], abs=0.51)
    assert [row[1:] for row in rows[len(able) :]] == [
        [each["kernel"], each["reason"]] for each in facts["refused"]
    ]
    if device == "cpu":
        assert [row[1] for row in able] == [name for _, name in LINE.findall(plan.explain())]


def test_it_begins_with_the_lines_of_explain():
    plan = plan_conv2d(*SHAPES, padding=1)
    lines = ET.fromstring(f"<x>{plan._repr_html_()}</x>").find("pre").text.splitlines()
    assert lines == [str(plan.problem), *plan.explain(brief=True).splitlines()]


def test_words_are_escaped():
    facts = plan_conv2d(*SHAPES).facts()
    odd = {"kernel": "a<b>&c", "milliseconds": 0.0, "needs": ""}
    refused = [{"kernel": "<i>", "reason": "1 < 2"}]
    texts, bars = cells(table({**facts, "candidates": [odd], "refused": refused}))
    assert [row[1] for row in texts[1:]] == ["a<b>&c", "<i>"]
    assert texts[-1][2] == "1 < 2" and bars[1] == 0
