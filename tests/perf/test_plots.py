"""Plots: sizes that fit a page, and shapes that stand where the numbers say."""

import math
import re
from xml.etree import ElementTree

import pytest

from perf import overviews, plots, upsampling
from perf.highlights import Least

SVG = "{http://www.w3.org/2000/svg}"
CEILINGS = {"fma": 1e9, "copy": 1e9}


def layer(name, seconds, algorithm="implicit_gemm", **ratios):
    """A row of a record; `ratios` are rivals' times over ours."""
    times = {one: {"median": 1.0} for one in ("call", *ratios)} | {"plan": {"median": seconds}}
    both = {f"{one}{which}": ratio for one, ratio in ratios.items() for which in ("", "/plan")}
    case = {"layer": name, "algorithm": algorithm, "flops": 10**9, "bytes": 10**8}
    return {**case, "timings": times, "ratios": both}


def made(*rows, **others):
    """A record with these rows."""
    machine = {"cpu": "AMD EPYC (family 26, model 2)", "gpu": None, "flags": [], "vector_bits": 512}
    settings = {"suite": "resnet50", "layout": "NCHW", "dtype": "float32", "threads": 1}
    return {"kind": "run", "machine": machine, "settings": settings, "rows": [*rows], **others}


def bars(*records):
    """A bar for the first rival of each record."""
    found = [overviews.overviews_of(record)[0] for record in records]
    return [Least("work", one, one) for one in found]


def shapes(picture, color, tag):
    """All elements of a picture with a tag and a colour."""
    found = ElementTree.fromstring(str(picture)).iter(f"{SVG}{tag}")
    return [element for element in found if element.get("class") == color]


def labels(picture):
    """All texts of a picture; those of a group have its attributes."""
    root = ElementTree.fromstring(str(picture))
    for group in root.iter(f"{SVG}g"):
        for element in group:
            element.attrib = {**group.attrib, **element.attrib}
    return list(root.iter(f"{SVG}text"))


def texts(picture):
    """Words of a picture and where they stand."""
    return {one.text: one for one in labels(picture) if one.get("class") == "text"}


def test_bars_are_as_long_as_the_means_say():
    records = [
        made(layer("1x1 1-1 @1", 1.0, torch=ratio), layer("1x1 1-1 @2", 1.0, torch=ratio))
        for ratio in (0.5, 1.0, 2.0)
    ]
    engine = made(layer("1x1 1-1 @1", 1.0, ncnn=4.0))
    picture = plots.overview(bars(*records, engine))
    call, plan = shapes(picture, "call", "rect")[1:], shapes(picture, "plan", "rect")[1:]
    widths = [float(bar.get("width")) for bar in call + plan]
    assert [width / widths[1] for width in widths] == pytest.approx([0.5, 1, 2, 4], rel=2e-3)
    left, one = float(call[0].get("x")), float(texts(picture)["1: as fast"].get("x"))
    assert one - left == pytest.approx(widths[1], abs=0.5)
    diamonds = shapes(picture, "worst", "path")[1:]
    places = [float(one.get("d")[1:].partition(",")[0]) - left for one in diamonds]
    assert places == pytest.approx(widths, abs=0.5)


def test_eight_bars_fit_above_the_fold():
    label = {"suite": "efficientnet", "layout": "NHWC", "dtype": "float32", "threads": 1}
    one = {**made(layer("1x1 1-1 @1", 1.0, onnxruntime=2.5)), "settings": label}
    picture = plots.overview(bars(one) * 8)
    assert (picture.width, picture.height <= 420) == (800, True)
    assert inside(picture)


@pytest.mark.parametrize("rows", [1, 66])
def test_plots_of_layers_fit_a_page(rows):
    names = [f"3x3 dilated 12 2048-256 @{number}" for number in range(rows)]
    many = [layer(name, 1.0, torch=0.3, onnxruntime=2, ncnn=5, opencv=9) for name in names]
    picture = plots.layers(made(*many, ceilings=CEILINGS))
    assert picture.height <= 900
    assert picture.width <= 480
    assert inside(picture)


def test_many_layers_with_long_names_stay_legible():
    """Suite audio has the most layers; a picture that a reader scrolls is better than tiny text."""
    many = [layer(name, 1.0, torch=0.3) for name in upsampling.operators("audio")]
    picture = plots.layers(made(*many, ceilings=CEILINGS))
    sizes = [float(size) for size in re.findall(r'font-size="([\d.]+)"', str(picture))]
    assert min(sizes) > 7.5
    assert inside(picture)


def inside(picture):
    """Whether all words lie inside the picture, by a letter's mean width of 0.55 of its size."""
    for element in labels(picture):
        width = 0.55 * float(element.get("font-size")) * len(element.text)
        start = float(element.get("x")) - width * {"middle": 0.5, "end": 1}.get(
            element.get("text-anchor"), 0
        )
        if start < 0 or start + width > picture.width:
            return False
        if not 0 < float(element.get("y")) < picture.height:
            return False
    return True


def test_marks_stand_at_their_ratios_and_the_worst_layer_is_first():
    record = made(layer("good", 1.0, torch=4.0), layer("bad", 1.0, torch=0.5))
    picture = plots.layers(record)
    found = texts(picture)
    assert float(found["bad"].get("y")) < float(found["good"].get("y"))
    bad, good = (float(one.get("cx")) for one in shapes(picture, "mark0", "circle")[1:])
    one, two = (float(found[tick].get("x")) for tick in ("1", "2"))
    octave = two - one
    assert [(bad - one) / octave, (good - one) / octave] == pytest.approx([-1, 2], abs=0.02)


def test_of_more_rivals_than_marks_the_fastest_of_each_layer_stands_alone():
    times = {"torch": 4.0, "onnxruntime": 2.0, "openvino": 3.0, "ncnn": 5.0, "opencv": 6.0}
    one, other = layer("one", 1.0, **times), layer("other", 1.0, **{**times, "ncnn": 0.5})
    picture = plots.layers(made(one, other))
    found = texts(picture)
    assert {"torch", "ncnn"}.isdisjoint(found) and "fastest of all" in found
    assert len(shapes(picture, "mark0", "circle")) == 1 + 2  # with that of the legend
    assert plots.layers_words(made(one, other)).count("fastest of all") == 1


def test_shares_are_those_of_the_nearer_limit():
    gemm = layer("gemm", 2.0, torch=1.0)  # 1e9 FLOP in 2 s: half of the peak
    fewer = layer("fewer", 0.8, "winograd_f2", torch=2.0)  # 1.25 of the peak
    moved = {**layer("moved", 4.0, torch=3.0), "bytes": 3 * 10**9}  # 0.75 of the copy
    picture = plots.layers(made(gemm, fewer, moved, ceilings=CEILINGS))
    call, worst = shapes(picture, "call", "rect"), shapes(picture, "worst", "rect")[:1]
    widths = [float(bar.get("width")) for bar in (*call, *worst)]
    assert [width / widths[2] for width in widths] == pytest.approx([0.4, 0.6, 1], rel=1e-2)
    assert math.isclose(widths[2] / 1.25, float(call[0].get("width")) / 0.5, rel_tol=1e-2)


def test_words_of_a_record_are_text_in_a_plot():
    hostile = "<script>alert(1)</script> & more"
    record = made(layer(hostile, 1.0, torch=1.0))
    record["settings"]["suite"] = hostile
    picture = plots.layers(record)
    assert hostile in texts(picture)
    assert not shapes(picture, None, "script")
    assert f"{hostile}, Zen 5" in texts(plots.overview(bars(record)))
