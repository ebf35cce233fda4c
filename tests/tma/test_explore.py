"""The explorer in a headless Chromium: its arithmetic, and its page as a user sees it."""

import json
import random
import re

import pytest

from implicit_conv import tma
from implicit_conv.problem.problem import Problem
from implicit_conv.tma.page.explore import page as html
from implicit_conv.tma.run.wide_lowering import WideLowering

pytestmark = pytest.mark.browser
WIDE, NARROW, WIDEST = (1280, 900), (390, 844), (1440, 900)


@pytest.fixture(scope="module")
def browser():
    """A running browser; the reason for a skip names what is missing."""
    websocket = pytest.importorskip("websocket", reason="websocket-client is not installed")
    assert websocket
    from browser import chromium, find

    program = find()
    if program is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with chromium(program) as tab:
        yield tab


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("explore") / "page.html"
    path.write_text(html(), encoding="utf-8")
    return path


@pytest.fixture
def page(browser, file):
    """The page, newly loaded; any script error fails the test."""
    browser.errors.clear()
    browser.open(file, *WIDE)
    yield browser
    browser.evaluate("1")
    assert browser.errors == []


def numbers(values):
    return ", ".join(map(str, values if isinstance(values, (list, tuple)) else [values]))


def type_into(page, name, value):
    """Set one field of the form as typing does."""
    page.evaluate(
        f"(n => {{ n.value = {json.dumps(value)};"
        "n.dispatchEvent(new Event('input', {bubbles: true})); })"
        f"(document.getElementById({json.dumps(name)}))"
    )


def fill(page, case):
    """Type a golden case into the form."""
    fields = {
        "shape": case["shape"][:-1],
        "lower": case["lower"],
        "upper": case["upper"],
        "step": case["step"],
        "pixels": case["pixels"],
        "start": case["coords"][:-1],
        "offsets": case.get("offsets", [0]),
        "halo": case.get("w_halo", 0),
        "offset": case.get("w_offset", 0),
    }
    page.evaluate("document.querySelector('input[name=what][value=copy]').click()")
    values = {**{name: numbers(value) for name, value in fields.items()}, "mode": case["mode"]}
    for name, value in values.items():
        type_into(page, name, value)


def shown_rows(page):
    """The rows of shared memory that the page shows."""
    found = page.evaluate(
        "[...document.querySelectorAll('[data-row]')].map(n => "
        "[n.querySelector('.index').textContent, n.querySelector('.at').textContent,"
        " n.classList.contains('filled')])"
    )
    assert [int(index) for index, _, _ in found] == list(range(len(found)))
    return [None if filled else [int(x) for x in at.split(",")] for _, at, filled in found]


def test_golden_cases_row_by_row(page, lab):
    for case in lab.cases:
        fill(page, case)
        assert shown_rows(page) == case["rows"], case["name"]
        assert page.evaluate("document.getElementById('faults').children.length") == 0


def test_cases_that_must_raise_are_refused_with_the_rule(page, refused):
    fill(page, refused)
    assert shown_rows(page) == []
    said = page.evaluate("document.getElementById('faults').textContent")
    assert re.search(r"must|is empty", said)


def test_walks_equal_the_simulator(page):
    rng = random.Random(3)
    for _ in range(300):
        mode = rng.choice(["im2col", "w", "w128"])
        spatial = [rng.randint(1, 9) for _ in range(rng.randint(1, 3))]
        axes = len(spatial) if mode == "im2col" else 1
        lower = [rng.randint(-3, 0) for _ in range(axes)]
        sizes = zip(lower, spatial[-axes:], strict=True)
        upper = [rng.randint(low - size + 1, 3) for low, size in sizes]
        steps = [rng.randint(1, 4) for _ in range(axes)]
        start = [0] * (len(spatial) - axes) + lower
        offsets = [rng.randint(0, 4) for _ in range(axes)]
        halo, offset = rng.randint(0, 9), rng.randint(0, 9)
        pixels, n = rng.randint(1, 150), rng.randint(-1, 3)
        copy = {
            "mode": mode,
            "shape": [4, *spatial],
            "lower": lower,
            "upper": upper,
            "step": steps,
            "pixels": pixels,
            "start": [n, *start],
            "offsets": offsets,
        }
        common = {
            "shape": (4, *spatial, 8),
            "dtype": "float16",
            "pixels_per_column": pixels,
            "channels_per_pixel": 8,
        }
        if mode == "im2col":
            map = tma.Im2colMap(
                **common, lower_corner=lower, upper_corner=upper, traversal_stride=steps
            )
            walked = tma.walk(map, (n, *start, 0), offsets)
        else:
            map = tma.Im2colWideMap(
                **common,
                lower_corner_w=lower[0],
                upper_corner_w=upper[0],
                traversal_stride=steps[0],
                mode=mode,
            )
            walked = tma.walk(map, (n, *start, 0), None, halo, offset)
        buffer = json.dumps({"halo": halo, "offset": offset})
        rows = page.evaluate(f"walkRows({json.dumps(copy)}, {buffer})")
        assert [row["at"] for row in rows] == walked.coordinates.tolist()
        assert [row["filled"] for row in rows] == walked.filled.tolist()
        assert [row["halo"] for row in rows] == walked.halo.tolist()
        assert [row["order"] for row in rows] == walked.order.tolist()


PLAN = """
(conv, tile) => {
  const plan = lower(conv);
  return {
    tiles: plan.tiles, slots: plan.slots, buffers: plan.buffers, outputs: plan.outputs(tile),
    blocks: plan.blocks(tile).map(block => ({
      loads: block.loads.map((copy, b) => instructionOf(copy, plan.buffers[b])),
      taps: block.taps.map(tap => [tap.r, tap.s, tap.buffer, tap.shift]),
      views: block.taps.map(tap => plan.outputs(tile).map(
        (_, m) => viewRow(conv.mode, m, tap, plan.buffers))),
    })),
  };
}
"""


def test_convolutions_equal_maps_for(page):
    rng = random.Random(4)
    proved = 0
    while proved < 150:
        mode = rng.choice(["im2col", "w", "w128"])
        sizes = [rng.randint(1, 4), rng.randint(1, 12), rng.randint(1, 30)]
        taps = [rng.randint(1, 5), rng.randint(1, 7)]
        pads = [[rng.randint(0, 4), rng.randint(0, 4)] for _ in range(2)]
        pair = [[rng.randint(1, 4), rng.randint(1, 4)] for _ in range(2)]
        tile_m = 128 if mode == "w128" else rng.choice([8, 16, 40])
        try:
            problem = Problem.parse(
                (*sizes, 8),
                (4, *taps, 8),
                stride=pair[0],
                dilation=pair[1],
                padding=pads,
                layout="NHWC",
                weight_layout="KRSC",
            )
        except ValueError:
            continue
        lowering = tma.maps_for(problem, mode, tile_m=tile_m)
        tile = rng.randrange(lowering.tiles)
        conv = {
            "N": sizes[0],
            "H": sizes[1],
            "W": sizes[2],
            "R": taps[0],
            "S": taps[1],
            "mode": mode,
            "stride": pair[0],
            "dilation": pair[1],
            "padLo": [p[0] for p in pads],
            "padHi": [p[1] for p in pads],
            "tile": tile_m,
        }
        plan = page.evaluate(f"({PLAN})({json.dumps(conv)}, {tile})")
        assert plan["tiles"] == lowering.tiles
        rows, kept = lowering.outputs(tile)
        assert [row["kept"] for row in plan["outputs"]] == kept.tolist()
        assert [r["at"] for r in plan["outputs"]] == rows.tolist()
        if isinstance(lowering, WideLowering):
            assert plan["slots"] == lowering.slots
        for theirs, ours in zip(plan["blocks"], lowering.k_blocks(tile), strict=True):
            texts = [re.sub(r"smem \+ \d+", "dst", lowering.ptx(load)) for load in ours.loads]
            assert theirs["loads"] == texts
            assert theirs["taps"] == [list(tap[:4]) for tap in ours.taps]
            assert theirs["views"] == [lowering.view_rows(tap).tolist() for tap in ours.taps]
        proved += 1


def lit(page):
    """(rows of shared memory, row lists of pixels) that are highlighted."""
    return page.evaluate(
        "[[...document.querySelectorAll('.row.lit')].map(n => n.dataset.row),"
        " [...document.querySelectorAll('.cell.lit')].map(n => n.dataset.rows)]"
    )


def test_hovering_lights_the_other_side(page):
    page.hover('[data-row="0:9"]')
    assert lit(page) == [["0:9"], ["0:9"]]
    page.hover('.cell[data-rows="0:3"]')
    assert lit(page) == [["0:3"], ["0:3"]]
    said = page.evaluate("document.getElementById('light').textContent")
    assert said == "Buffer 1, row 3 is pixel (0, 0, 2), loaded"


def test_keyboard_alone_steps_and_lights(page):
    says = "document.getElementById('says').textContent"
    page.evaluate("document.getElementById('step-slider').focus()")
    page.press("ArrowRight")
    assert page.evaluate(says).startswith("Step 2 of 12: tap r = 0, s = 0")
    page.press("End")
    assert page.evaluate(says).startswith("Step 12 of 12: tap r = 2, s = 2")
    page.evaluate("document.getElementById('memory').focus()")
    page.press("ArrowDown")
    page.press("ArrowDown")
    assert lit(page) == [["0:1"], ["0:1"]]
    page.press("Escape")
    assert lit(page) == [[], []]
    reachable = page.evaluate(
        "[...document.querySelectorAll('button, input, select, [tabindex]')]"
        ".every(n => n.tabIndex >= 0)"
    )
    assert reachable


def test_steps_go_through_loads_and_shifted_views(page):
    """3 x 3 at stride 2: two loads, then taps 0, 1, 2 read buffers 1, 2 and 1 shifted."""
    page.evaluate("choose('3 x 3, stride 2: two buffers')")
    said = []
    for _ in range(5):
        said.append(page.evaluate("document.getElementById('says').textContent").split(": ", 1)[1])
        page.evaluate("document.getElementById('next').click()")
    assert said[0].endswith("into buffer 1, w_offset 0, w_halo 1")
    assert said[1].endswith("into buffer 2, w_offset 1, w_halo 0")
    assert said[2].endswith("s = 0 reads buffer 1 through a view shifted by 0 rows")
    assert said[3].endswith("s = 1 reads buffer 2 through a view shifted by 0 rows")
    assert said[4].endswith("s = 2 reads buffer 1 through a view shifted by 1 row")


SAYS = "document.getElementById('says').textContent"
WAITING = "document.querySelectorAll('.row.waiting').length"


def test_a_copy_steps_pixel_by_pixel(page):
    """Figure 16 has one load of 32 pixels: all are there at first; Back takes the last away."""
    page.evaluate("choose('Figure 16: im2col::w walks one row of each image')")
    assert page.evaluate(SAYS) == "Step 32 of 32: load 32 rows into buffer 1, w_offset 0, w_halo 0"
    assert page.evaluate(WAITING) == 0
    for _ in range(27):
        page.press("ArrowLeft")
    wrap = "Step 5 of 32: pixel (3, 2, 8) is loaded, into row 4; the walk wraps to (4, 2, -1)"
    assert page.evaluate(SAYS) == wrap
    assert page.evaluate(WAITING) == 27
    page.press("ArrowRight")
    assert page.evaluate(SAYS).endswith(
        "pixel (4, 2, -1) is outside the tensor: filled, into row 5"
    )


def test_the_output_that_a_row_serves_is_lit(page):
    page.evaluate("go(2)")  # tap r = 0, s = 1: a view shifted by one row
    page.hover('[data-row="0:3"]')
    lit_outputs = "[...document.querySelectorAll('.out.lit')].map(n => n.dataset.m)"
    assert page.evaluate(lit_outputs) == ["2"]
    said = page.evaluate("document.getElementById('light').textContent")
    assert said.endswith("this tap reads it for row m2 of the tile")
    tapped = "[...document.querySelectorAll('.out')].findIndex(n => n.matches('.tapped'))"
    assert page.evaluate(tapped) == 1


def test_the_address_restores_what_is_seen(browser, file):
    browser.open(file, *WIDE)
    browser.evaluate("choose('3 x 3, stride 2: two buffers')")
    browser.evaluate("go(3)")
    seen, address = browser.evaluate(SAYS), browser.evaluate("location.hash")
    type_into(browser, "W", "11")
    own = browser.evaluate("location.hash"), browser.evaluate(SAYS)
    for hash_, text in ((address, seen), own):
        browser.evaluate(f"location.hash = {json.dumps(hash_)}")
        browser.evaluate("document.getElementById('says').textContent = ''; recall(); 1")
        assert browser.evaluate(SAYS) == text
    assert browser.evaluate("document.getElementById('W').value") == "11"


def test_ptx_words_of_modes_are_read(page):
    page.evaluate("location.hash = '#show=3+x+3,+stride+1,+padding+1&mode=im2col::w::128&at=1'")
    page.evaluate("recall(); 1")
    assert page.evaluate("scene.mode") == "w128"
    fields = {"shape": [4, 9, 12, 64], "dtype": "float16", "channels_per_pixel": 64}
    corners = {"lower_corner_w": -1, "upper_corner_w": -1, "pixels_per_column": 8}
    page.evaluate("document.querySelector('input[name=what][value=own]').click()")
    for mode, ours in (("im2col::w", "w"), (".IM2COL::W::128", "w128"), ("w", "w")):
        type_into(page, "json", json.dumps({**fields, **corners, "mode": mode}))
        assert page.evaluate("document.getElementById('faults').children.length") == 0
        assert page.evaluate("scene.mode") == ours


def test_words_are_explained(page):
    page.evaluate("go(0)")
    words = page.evaluate(
        "[...document.querySelectorAll('abbr')].map(n => [n.textContent, n.title])"
    )
    assert {"w_halo", "w_offset", "slots", "L"} <= {word for word, _ in words}
    assert all(meaning.endswith(".") for _, meaning in words)
    listed = page.evaluate("[...document.querySelectorAll('#words dt')].map(n => n.textContent)")
    assert {"tap", "slot", "L", "halo"} <= set(listed)


def test_dark_pages_are_dark(browser, file):
    features = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", features=features)
    try:
        browser.open(file, *WIDE)
        style = "getComputedStyle(document.body)"
        assert browser.evaluate(f"{style}.backgroundColor") == "rgb(13, 17, 23)"
        assert browser.evaluate(f"{style}.color") == "rgb(230, 237, 243)"
    finally:
        browser.call("Emulation.setEmulatedMedia", features=[])


def test_boxes_equal_the_simulator(page):
    rng = random.Random(6)
    for _ in range(60):
        rank = rng.randint(1, 4)
        shape = [rng.randint(1, 6) for _ in range(rank)]
        box = [rng.randint(1, 5) for _ in range(rank)]
        steps = [rng.randint(1, 3) for _ in range(rank)]
        start = [rng.randint(-3, 6) for _ in range(rank)]
        map = tma.TiledMap(shape=(*shape, 16), dtype="uint8", box=(*box, 16), step=(*steps, 1))
        walked = tma.walk(map, (*start, 0))
        copy = {"mode": "tiled", "shape": shape, "box": box, "step": steps, "start": start}
        rows = page.evaluate(f"walkRows({json.dumps(copy)})")
        assert [row["at"] for row in rows] == walked.coordinates.tolist()
        assert [row["filled"] for row in rows] == walked.filled.tolist()
        text = page.evaluate(f"instructionOf({json.dumps(copy)})")
        assert text == map.ptx((*start, 0))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("W", "-1", "at least 1"),
        ("stride", "1, 2, 3", "two: h, w"),
        ("kernel", "9, 9, 9", "two: h, w"),
        ("padLo", "a", "padding is integers"),
        ("kernel", "30", "larger than the padded image"),
        ("W", "5000", "at most 4096 pixels"),
        ("stride", "9", "at most 8"),
        ("tileRows", "2000", "at most 1024 rows"),
    ],
)
def test_sizes_that_cannot_be(page, name, value, said):
    type_into(page, name, value)
    assert said in page.evaluate("document.getElementById('faults').textContent")
    assert shown_rows(page) == []
    assert page.evaluate("document.getElementById('preset').value") == "(own sizes)"


FILTER = (
    "[...document.querySelectorAll('#output figure')].slice(0, 1).flatMap(f =>"
    " [...f.querySelectorAll('.out')].map(n => [n.textContent, n.classList[1]]))"
)


def test_a_load_shows_the_taps_that_it_feeds(page):
    """A load of im2col::w feeds a filter row; +1 is the shift of a view."""
    none = ["", "exists"]
    for first, row in ((0, 0), (4, 1), (8, 2)):
        page.evaluate(f"go({first})")
        fed = [[f"+{s}", "fed"] for s in range(3)]
        assert page.evaluate(FILTER) == [*[none] * 3 * row, *fed, *[none] * (6 - 3 * row)]
        page.evaluate(f"go({first + 2})")
        assert page.evaluate(FILTER)[3 * row + 1] == ["+1", "tapped"]
    page.evaluate("choose('3 x 3, stride 2: two buffers')")
    page.evaluate("go(1)")  # the load of buffer 2, which tap 1 alone reads
    assert page.evaluate(FILTER)[:3] == [["+0", "exists"], ["+0", "fed"], ["+1", "exists"]]
    type_into(page, "mode", "im2col")
    page.evaluate("go(2)")  # the second load, for the second tap
    assert page.evaluate(FILTER)[:3] == [none, ["+0", "fed"], none]


@pytest.mark.parametrize("size", [WIDE, NARROW, WIDEST])
def test_slots_are_explained_without_scrolling(browser, file, size):
    browser.open(file, *size)
    text = browser.evaluate("document.getElementById('facts').textContent")
    words = "An image row takes L = 8 slots: its 7 outputs, and 1 more that is dropped, so that a "
    assert f"{words}shifted view never reads a neighbour where padding should be." in text
    box = "document.getElementById('facts').getBoundingClientRect()"
    assert browser.evaluate(f"{box}.bottom") < size[1] / 2
    browser.evaluate("choose('3 x 3, stride 3: three buffers')")
    text = browser.evaluate("document.getElementById('facts').textContent")
    assert "An image row takes L = 3 slots: its 3 outputs. " in text
    type_into(browser, "mode", "im2col")
    assert "slots" not in browser.evaluate("document.getElementById('facts').textContent")


def test_a_wide_window_is_used(browser, file):
    """Filter, outputs and words stand right of the middle, in the first window."""
    browser.open(file, *WIDEST)
    for name in ("output", "words"):
        box = f"document.getElementById('{name}').getBoundingClientRect()"
        left, right, bottom = browser.evaluate(f"(b => [b.left, b.right, b.bottom])({box})")
        assert left > WIDEST[0] / 2 and right > WIDEST[0] - 40 and bottom < WIDEST[1], name
    assert browser.evaluate("document.getElementById('words').open")
    for name in browser.evaluate("Object.keys(CONVOLUTIONS)"):
        browser.evaluate(f"choose({json.dumps(name)})")
        cut = "(n => n.scrollWidth > n.clientWidth)(document.getElementById('tensor'))"
        assert not browser.evaluate(cut), name


@pytest.mark.parametrize("size", [WIDE, NARROW, WIDEST])
def test_it_fits_the_window(browser, file, size):
    """No example makes the page scroll sideways or has text below 11 pixels."""
    browser.open(file, *size)
    names = browser.evaluate("[...document.querySelectorAll('#preset option')].map(o => o.value)")
    for name in names[:-1]:
        browser.evaluate(f"choose({json.dumps(name)})")
        assert browser.evaluate("document.documentElement.scrollWidth") <= size[0], name
    smallest = browser.evaluate(
        "Math.min(...[...document.querySelectorAll('body *')]"
        ".filter(n => n.childElementCount === 0 && n.textContent.trim() && n.tagName !== 'SCRIPT')"
        ".map(n => parseFloat(getComputedStyle(n).fontSize)))"
    )
    assert smallest >= 11


def test_the_page_stands_alone():
    """The page fetches nothing: its only address is the name of the SVG namespace."""
    text = html()
    assert set(re.findall(r"https?://[^\s\"'<>]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=|@import|fetch\(|XMLHttp", text)


def test_the_command_writes_it(tmp_path, capsys):
    from implicit_conv.tools.cli import main

    out = tmp_path / "x.html"
    assert main(["explore", "--out", str(out)]) == 0
    assert out.read_text(encoding="utf-8") == html()
    assert "open it in a browser" in capsys.readouterr().out
