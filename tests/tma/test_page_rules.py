"""The rules in the explorer's page are those of Python, in a headless Chromium."""

import json
import random
import re

import pytest

from implicit_conv import tma
from implicit_conv.tma.check.linter import _read, root
from implicit_conv.tma.check.suspicions import map_suspicions
from implicit_conv.tma.maps.limits import Start, rename
from implicit_conv.tma.maps.rules import map_findings, start_findings
from implicit_conv.tma.page.explore import page as html

pytestmark = pytest.mark.browser
OPERANDS = ("coords", "offsets", "w_halo", "w_offset", "dst")
MAPS = 1000


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page in a running browser; the reason for a skip names what is missing."""
    pytest.importorskip("websocket", reason="websocket-client is not installed")
    from browser import chromium, find

    program = find()
    if program is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    path = tmp_path_factory.mktemp("rules") / "page.html"
    path.write_text(html(), encoding="utf-8")
    with chromium(program) as tab:
        tab.open(path, 1280, 900)
        yield tab
        assert tab.errors == []


def by_python(given):
    """The rules that an object breaks: (field, rule, source, whether only a warning)."""
    operands = {name: given[name] for name in OPERANDS if name in given}
    read = _read({name: value for name, value in given.items() if name not in OPERANDS})
    found = list(read.findings)
    if read.map is not None:
        broken = map_findings(read.map)
        readable = not any(root(f) in ("shape", "strides", "dtype") for f in broken)
        if not broken and operands:
            tuples = {n: tuple(v) if isinstance(v, list) else v for n, v in operands.items()}
            broken = start_findings(read.map, Start(**tuples))
        wrong = {root(f) for f in broken}
        if readable:
            broken += [f for f in map_suspicions(read.map) if root(f) not in wrong]
        found += rename(broken, read.name)
    return [[f.field, f.allowed, f.source, f.severity == "warning"] for f in found]


RNG = random.Random(11)
ODD = (-(1 << 33), -40000, -129, -17, -5, -1, 0, 3, 9, 17, 33, 129, 257, 1025, 40000, 1 << 33)


def sound(kind):
    """The arguments of a map and a load that break no rule, ours or the driver's."""
    rank = RNG.randint(1, 5) if kind == "tiled" else RNG.randint(3, 5)
    size, name = RNG.choice([(2, "float16"), (4, "float32"), (1, "uint8"), (8, "int64")])
    channels = RNG.choice([64, 128]) // size
    shape = [*(RNG.randint(6, 30) for _ in range(rank - 1)), 128]
    common = {"shape": shape, "dtype": name}
    axes = 1 if kind == "w" else rank - 2
    low = [RNG.randint(-2, 0) for _ in range(axes)]
    up = [RNG.randint(-2, 1) for _ in range(axes)]
    common["swizzle"] = "128B" if kind == "w" else RNG.choice(["none", "128B"])
    if kind == "tiled":
        box = [*(RNG.randint(1, 8) for _ in range(rank - 1)), channels]
        return {**common, "box": box, "coords": [RNG.randint(-3, 9) for _ in range(rank)]}
    common |= {"pixels_per_column": RNG.randint(1, 90), "channels_per_pixel": channels}
    start = [0] * (rank - 1 - axes) + low + [0]
    if kind == "im2col":
        corners = {"lower_corner": low, "upper_corner": up}
        offsets = [RNG.randint(0, 3) for _ in range(axes)]
        return {**common, **corners, "coords": start, "offsets": offsets}
    corners = {"lower_corner_w": low[0], "upper_corner_w": up[0], "mode": RNG.choice(["w", "w128"])}
    return {**common, **corners, "coords": start, "w_halo": RNG.randint(0, 9)}


def as_driver(given):
    """The same map in the driver's words."""
    load = {name: given[name] for name in OPERANDS if name in given}
    read = _read({name: value for name, value in given.items() if name not in OPERANDS})
    from implicit_conv.tma.maps.driver import map_arguments

    arguments = map_arguments(read.map)
    arguments.pop("function")
    if RNG.random() < 0.5:  # as log_maps writes them
        arguments |= {"tensorDataType": {"float16": 6, "float32": 7}.get(given["dtype"], 0)}
        arguments["swizzle"] = RNG.randint(0, 6)
    return json.loads(json.dumps({**arguments, **load}))


def damaged(given):
    """One to three entries replaced, arrays shortened or lengthened, names left out or added."""
    given = json.loads(json.dumps(given))
    for _ in range(RNG.randint(0, 3)):
        name = RNG.choice(sorted(given))
        value = given[name]
        if isinstance(value, list) and value and RNG.random() < 0.8:
            value[RNG.randrange(len(value))] = RNG.choice(ODD)
        elif isinstance(value, list):
            given[name] = value[:-1] if RNG.random() < 0.5 else [*value, RNG.choice(ODD)]
        elif isinstance(value, int):
            given[name] = RNG.choice(ODD)
        elif name in ("swizzle", "interleave", "oob_fill", "oobFill"):
            given[name] = RNG.choice(["none", "32B", "64B", "128B_ATOM_64B", "nan", "16B", "odd"])
    if RNG.random() < 0.2:
        extra = {"interleave": RNG.choice(["16B", "32B"]), "address": RNG.choice([4096, 4104])}
        given |= extra if "shape" in given and "mode" not in given else {"globalAddress": 4104}
        if "shape" in given:
            given.pop("globalAddress", None)
    if RNG.random() < 0.1:
        given.pop(RNG.choice(sorted(set(given) - {"globalDim", "shape", "dtype", "coords"})))
    return given


def readable(given):
    """Whether Python takes the object at all: it raises where an argument belongs to no map."""
    try:
        by_python(given)
    except (TypeError, ValueError):
        return False
    return not given.get("offsets") or "coords" in given


def test_a_thousand_maps(page):
    maps = []
    while len(maps) < MAPS:
        given = sound(RNG.choice(["tiled", "im2col", "w"]))
        given = damaged(as_driver(given) if RNG.random() < 0.5 else given)
        if readable(given):
            maps.append(given)
    theirs = page.evaluate(
        f"{json.dumps(maps)}.map(object => lintMap(object).found.map("
        "f => [f.field, f.allowed, f.source, f.severity === 'warning']))"
    )
    wrong, rules = 0, set()
    for given, found in zip(maps, theirs, strict=True):
        assert found == by_python(given), given
        wrong += not all(warning for *_, warning in found)
        rules |= {re.sub(r"-?\d+", "", f"{field} {allowed}") for field, allowed, *_ in found}
    assert 300 < wrong < 900
    assert len(rules) > 120


def said(page):
    return page.evaluate("[...document.querySelectorAll('#faults li')].map(n => n.textContent)")


def write(page, text):
    page.evaluate("document.querySelector('input[name=what][value=own]').click()")
    page.evaluate(
        f"(n => {{ n.value = {json.dumps(text)};"
        "n.dispatchEvent(new Event('input', {bubbles: true})); })(document.getElementById('json'))"
    )


def test_a_user_writes_a_map(page):
    given = sound("im2col")
    write(page, json.dumps(given))
    assert said(page) == []
    rows = page.evaluate("document.querySelectorAll('[data-row]').length")
    assert rows == given["pixels_per_column"]
    assert "breaks no rule" in page.evaluate("document.getElementById('facts').textContent")
    write(page, json.dumps({**given, "channels_per_pixel": 3}))
    (line,) = said(page)
    assert line.startswith("channels_per_pixel = 3: its ") and "multiple of 16" in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "this is not JSON"),
        ("[]", "write one object"),
        ('{"shape": 3, "dtype": "float16", "box": [1]}', "must be a sequence of integers"),
        ('{"shape": [3.5], "dtype": "float16", "box": [1]}', "must be a sequence of integers"),
        ('{"shape": [64], "dtype": "float99", "box": [8]}', "is unknown here"),
        ('{"shape": [64], "dtype": "float16", "box": [8], "boxes": 2}', "is no argument of"),
        ('{"shape": [64], "dtype": "float16"}', "is missing"),
    ],
)
def test_what_is_no_map(page, text, words):
    write(page, text)
    assert any(words in line for line in said(page)), said(page)


def facts(page):
    return page.evaluate("document.getElementById('facts').textContent")


@pytest.mark.parametrize(
    ("map", "start"),
    [
        (
            tma.TiledMap(shape=(2, 12, 1000, 128), dtype="float16", box=(1, 1, 64, 64)),
            (1, 3, 960, 64),
        ),
        (tma.TiledMap(shape=(1 << 22, 64), dtype="float16", box=(128, 64)), (1 << 21, 0)),
        (
            tma.Im2colMap(
                shape=(8, 112, 112, 64),
                dtype="float16",
                lower_corner=(-1, -1),
                upper_corner=(-1, -1),
                pixels_per_column=96,
                channels_per_pixel=64,
            ),
            (2, 3, 5, 0),
        ),
    ],
    ids=["attention", "rows", "images"],
)
def test_a_map_that_is_too_large_to_draw(page, map, start):
    """The page says what a copy loads, and that the picture alone is left out."""
    write(page, json.dumps({**map.arguments, "coords": start}))
    walked = tma.walk(map, start)
    assert said(page) == []
    assert f"A load delivers {len(walked.coordinates)} rows" in facts(page)
    assert "It breaks no rule." in facts(page)
    assert page.evaluate("document.querySelectorAll('[data-row]').length") == len(
        walked.coordinates
    )
    words = page.evaluate("document.getElementById('tensor').textContent")
    assert words == "The tensor is not drawn: this page draws images of at most 4096 pixels."


def test_a_box_of_too_many_rows_to_draw(page):
    map = tma.TiledMap(shape=(512, 64), dtype="uint8", box=(256, 16))
    more = tma.TiledMap(shape=(64, 512, 64), dtype="uint8", box=(8, 256, 16))
    for drawn, rows in ((map, 256), (more, 2048)):
        write(page, json.dumps(drawn.arguments))
        assert f"A load delivers {rows} rows" in facts(page) and "breaks no rule." in facts(page)
    assert said(page) == ["this page draws boxes of at most 1024 rows"]
    heading = page.evaluate("document.getElementById('says').textContent")
    assert heading == "This is right, but not drawn:"


def test_an_upper_corner_of_the_padding_has_a_warning(page):
    common = {"shape": [2, 9, 14, 64], "dtype": "float16", "lower_corner": [-1, -1]}
    given = {**common, "upper_corner": [1, 1], "pixels_per_column": 64, "channels_per_pixel": 64}
    write(page, json.dumps(given))
    assert said(page) == [] and "breaks no rule, but:" in facts(page)
    assert facts(page).count("reaches past the last output: rows would overrun") == 2
    page.evaluate("document.querySelector('input[name=what][value=copy]').click()")  # as a form
    assert facts(page).count("reaches past the last output: rows would overrun") == 2
    write(page, json.dumps({**given, "upper_corner": [-1, -1]}))
    assert "breaks no rule." in facts(page) and "overrun" not in facts(page)
