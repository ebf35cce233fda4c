"""Pictures: the text shows the golden rows, files are drawn, the gallery in docs/ is current."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from implicit_conv import tma
from implicit_conv.tma.commands import JSON_FORM
from implicit_conv.tma.page import explore
from implicit_conv.tma.show import image as lines
from implicit_conv.tma.show.examples import EXAMPLES
from implicit_conv.tma.show.figure import ROWS_ACROSS, ROWS_DOWN, Places, digest, kept
from implicit_conv.tma.show.gallery import MEMORY, memory, page
from implicit_conv.tma.show.image import memory_picture
from implicit_conv.tools.cli import main

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
ROW = re.compile(r"(\d+) <- \(([-\d, ]+)\)( fill)?( halo)?")


def table(text):
    """The rows of shared memory that a text shows; None for filled rows."""
    rows = {}
    for index, coordinates, fill, _ in ROW.findall(text):
        rows[int(index)] = None if fill else [int(x) for x in coordinates.split(",")]
    return [rows[i] for i in range(len(rows))]


def drawn(case, lab, **more):
    return tma.draw(lab.make_map(case), case["coords"], **lab.operands(case), **more)


def test_text_shows_the_golden_rows(case, lab):
    assert table(drawn(case, lab)) == case["rows"]


def test_text_shows_the_walk_in_the_tensor(lab):
    """Figure 13 by hand: image 7 ends at pixel 8; row h = 0 of image 8 begins with fill 23."""
    case = next(c for c in lab.cases if c["name"] == "ptx-figure-13")
    lines = drawn(case, lab).splitlines()
    last = next(line for line in lines if line.startswith("   7   |"))
    assert re.findall(r"\d+", last)[1:] == [str(k) for k in range(9)]
    assert any(line.startswith("   0   |(23)   24   25") for line in lines)
    assert "box h [-1, 7] x w [-1, 12]" in lines[1]


def test_halo_and_wraps_are_marked(lab):
    case = next(c for c in lab.cases if c["name"] == "ptx-figure-18")
    lines = drawn(case, lab).splitlines()
    assert any(line.endswith("127 [128] [129]|") for line in lines)
    assert any(line.startswith("   7") and line.endswith("3<") for line in lines)


def test_buffers_have_letters_and_tables_of_their_own():
    example = EXAMPLES["ptx-example-2"]
    text = tma.draw(example.map, example.coords, buffers=example.buffers)
    assert "(a0)    b0    c0    a1" in re.sub(" +", "    ", text)
    assert all(f"buffer {b}: w_offset {b - 1}, w_halo 0, 16384 bytes" in text for b in (1, 2, 3))


def test_colour_only_where_it_is_wanted(monkeypatch, lab):
    case = lab.cases[0]
    assert "\x1b[" not in drawn(case, lab), "standard output is no terminal here"
    assert "\x1b[" in drawn(case, lab, color=True)
    assert re.sub(r"\x1b\[\d+m", "", drawn(case, lab, color=True)) == drawn(case, lab)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "\x1b[" in drawn(case, lab)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in drawn(case, lab)


def test_a_long_load_shows_its_first_planes_and_its_last():
    map = tma.Im2colMap(
        shape=(40, 3, 3, 16),
        dtype="float16",
        lower_corner=(0, 0),
        upper_corner=(0, 0),
        traversal_stride=1,
        pixels_per_column=300,
        channels_per_pixel=8,
    )
    text = tma.draw(map, (0, 0, 0, 0))
    assert "n = 4\n" in text and "n = 5" not in text
    assert "n = 33  (28 planes before it are not shown)" in text
    assert len(table(text)) == 300


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_files(tmp_path, lab, suffix):
    path = tmp_path / f"picture.{suffix}"
    assert drawn(lab.cases[1], lab, path=path) == str(path)
    begin = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(begin)


def test_the_same_picture_gives_the_same_file(tmp_path, lab):
    paths = [tmp_path / name for name in ("a.svg", "b.svg")]
    for path in paths:
        drawn(lab.cases[0], lab, path=path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_suffix_that_no_drawing_has(tmp_path, lab):
    with pytest.raises(ValueError, match=r"\.svg, \.png, \.pdf"):
        drawn(lab.cases[0], lab, path=tmp_path / "picture.gif")


def test_printed_starts_outside_their_own_box_are_refused():
    """Figures 14 and 15 as they are printed; the gallery draws them as (n, w, h, c)."""
    for name, coords, box in (
        ("ptx-14", (7, 7, 4, 0), "[0, 6]"),
        ("ptx-15", (7, 7, 5, 0), "[-1, 6]"),
    ):
        example = EXAMPLES[name]
        assert sorted(coords) == sorted(example.coords)
        with pytest.raises(tma.TensorMapError, match=re.escape(f"inside the box {box}")):
            tma.walk(example.map, coords, example.offsets)


def test_gallery_is_current():
    """`implicit-conv draw --gallery docs/gallery` writes it."""
    assert (GALLERY / "README.md").read_text(encoding="utf-8") == page()
    digests = {name: digest(example.picture()) for name, example in EXAMPLES.items()}
    for name in MEMORY:
        image = memory(name)
        report = image.bank_conflicts("ldmatrix")
        digests[name] = digest(memory_picture(image.layout, report), lines.__file__)
    for name, expected in digests.items():
        assert f"digest {expected}" in (GALLERY / f"{name}.svg").read_text(encoding="utf-8"), name
    assert {file.stem for file in GALLERY.glob("*.svg")} == set(digests)


PIXELS = 96  # of an inch, in a browser


def test_drawings_fit_a_page_with_legible_digits():
    """At most 800 pixels wide, and no text of less than 11 pixels."""
    for name in ("ptx-20", "ptx-example-2", "ptx-19", "volume"):
        drawing = (GALLERY / f"{name}.svg").read_text(encoding="utf-8")
        width = float(re.search(r'width="([\d.]+)pt"', drawing)[1])
        assert width / 72 * PIXELS <= 800, name
        sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", drawing)]
        assert min(sizes) / 72 * PIXELS >= 11, name
        assert "prefers-color-scheme:dark" in drawing


@pytest.mark.parametrize("name", [name for name, e in EXAMPLES.items() if e.map.mode != "tiled"])
def test_no_halo_is_elided(name):
    """Figure 20 is about its one halo pixel; the last pixel of a walk is shown too."""
    made = EXAMPLES[name].picture()
    for plane in made.planes:
        marked = [(cell, mark) for cell, marks in plane.marks.items() for mark in marks]
        last = max(mark.order for _, mark in marked if not mark.halo)
        cells = [cell for cell, mark in marked if mark.halo or mark.order == last]
        for axis, most, positions in ((0, ROWS_DOWN, plane.down), (1, ROWS_ACROSS, plane.across)):
            places = Places(positions, most, kept(plane, axis))
            shown = [x for _, x in places]
            assert {cell[axis] for cell in cells} <= set(shown)
            assert shown == sorted(set(shown)) and len(places) <= most + 1
            ends = positions[0], positions[-1]
            assert (shown[0], shown[-1]) == ends
            steps = sum(b - a > 1 for a, b in itertools.pairwise(shown))
            assert steps == len(places.gaps)


def test_a_box_is_drawn_with_and_without_its_offsets():
    plane = EXAMPLES["ptx-14"].picture().planes[0]
    (box,), shifted = plane.boxes, plane.shifted
    assert [b - a for a, b in zip(box.first, shifted.first, strict=True)] == [2, 2]
    assert [b - a for a, b in zip(box.last, shifted.last, strict=True)] == [2, 2]
    assert all(cell[0] <= shifted.last[0] for cell in plane.marks)
    assert EXAMPLES["ptx-13"].picture().planes[0].shifted is None
    svg = (GALLERY / "ptx-14.svg").read_text(encoding="utf-8")
    assert "the same, shifted by the offsets" in svg


def test_a_dark_page_has_dark_hatches():
    svg = (GALLERY / "ptx-20.svg").read_text(encoding="utf-8")
    (style,) = re.findall(r"<style>@media \(prefers-color-scheme:dark\)(.*?)</style>", svg)
    (paper,) = set(re.findall(r'<pattern.*?<rect[^>]*fill="(#\w+)"', svg, re.DOTALL))
    assert paper == "#ffffff" and "pattern rect{fill:#0d1117!important}" in style


def contrast(one, other):
    """WCAG 2: the ratio of two colours' luminances."""

    def luminance(color):
        parts = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in color]
        return sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    light, dark = sorted([luminance(one), luminance(other)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_headings_of_the_explorer_are_legible(dark):
    page = Path(explore.__file__).parent
    css = (page / "style.css").read_text(encoding="utf-8")
    light, night = css.split("@media (prefers-color-scheme: dark)")
    (share,) = re.findall(
        r'"h2", \{ style: `color: color-mix\(in srgb, var\(--b.*?\) (\d+)%, var\(--ink\)\)',
        (page / "view.js").read_text(encoding="utf-8"),
    )

    def value(name):
        found = re.search(rf"--{name}: #(\w+)", (night if dark else light).split("}")[0])
        digits = found[1] if len(found[1]) == 6 else "".join(2 * c for c in found[1])
        return [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]

    for b in re.findall(r"--b\d: #(\w+)", light):
        color = [int(b[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        part = int(share) / 100
        mixed = [part * x + (1 - part) * y for x, y in zip(color, value("ink"), strict=True)]
        assert contrast(mixed, value("paper")) >= 4.5, b


def test_memory_is_drawn_as_text():
    text = memory("memory-128B").draw(access="ldmatrix")
    rows = [line.split() for line in text.splitlines()[4:12]]
    assert [row[1 + i] for i, row in enumerate(rows)] == [f"[{i}:0]" for i in range(8)]
    assert rows[1][1] == "1:1" and "no conflicts" in text
    assert "8-way conflicts" in memory("memory-none").draw(access="ldmatrix")


def test_draw_command(capsys, tmp_path, monkeypatch):
    assert main(["draw", "--example", "ptx-18"]) == 0
    assert "Figure 18" in capsys.readouterr().out
    copy = "--shape 128,7,7,64 --lower=-1 --upper=-1 --step 3 --start 7,2,-1,0".split()
    assert main(["draw", "--mode", "w", *copy, "--offset", "0,1,2"]) == 0
    assert "buffer 3: w_offset 2" in capsys.readouterr().out
    out = tmp_path / "x.svg"
    assert main(["draw", "--mode", "w", *copy, "--out", str(out)]) == 0
    assert out.exists()
    monkeypatch.chdir(tmp_path)
    for given, written in (("a.svg", "a.svg"), ("b.png", "b.png"), ("c", "c.svg")):
        for form in ([given], ["--out", given]):
            assert main(["draw", "--example", "im2col::w", *form]) == 0
            assert capsys.readouterr().out.splitlines()[-1] == written
            kind = b"\x89PNG" if written.endswith("png") else b"<?xml"
            assert Path(written).read_bytes().startswith(kind)
            Path(written).unlink()
    assert main(["draw", "--list"]) == 0
    assert "ptx-24" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mode", "name"),
    [("im2col::w", "row"), ("im2col::w::128", "ptx-19"), ("IM2COL", "ptx-13"), (".tile", "tile")],
)
def test_a_mode_names_an_example(mode, name, capsys):
    assert main(["draw", "--example", mode]) == main(["draw", "--example", name]) == 0
    printed = capsys.readouterr().out
    assert printed[: len(printed) // 2] == printed[len(printed) // 2 :]
    assert main(["lint", "--example", mode]) == 0
    assert "0 errors" in capsys.readouterr().out
    assert main(["draw", "--list"]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert name in listed[mode.lower().lstrip(".")]


def test_the_row_is_that_of_the_shifted_view():
    """It loads what `maps_for` loads of such a row, and taps read it from rows 0, 1 and 2 on."""
    example = EXAMPLES["row"]
    shapes = example.map.shape, (32, 3, 3, 64)
    lowering = tma.maps_for(shapes, "im2col::w", padding=1, dtype="float16", tile_m=6)
    assert lowering.maps == (example.map,)
    block = next(lowering.k_blocks(2 * lowering.row_tiles))  # of output row 2
    load = block.loads[0]
    assert (load.w_halo, load.w_offset) == example.buffers[0]
    assert [tap.row_shift for tap in block.taps] == [0, 1, 2]
    x = np.zeros(example.map.shape, "float16")
    x[0, 2] = np.arange(1, 7)[:, None]  # a to f
    values = tma.load(example.map, x, example.coords, w_halo=2)[:, 0]
    assert values.tolist() == [0, 1, 2, 3, 4, 5, 6, 0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["draw"], "give --shape N,[D,]H,W,C or --example NAME, or choose one from --list"),
        (["draw", "--start", "0,0,0,0"], "--shape"),
        (["lint"], "give --shape N,[D,]H,W,C or --example NAME, or name a FILE.json"),
        (["draw", "--example", "ptx-99"], "or one of row, ptx-11"),
    ],
)
def test_draw_command_says_what_is_wrong(capsys, arguments, said):
    assert main(arguments) == 2
    assert said in capsys.readouterr().err


def test_draw_starts_at_the_lower_corner(capsys):
    assert main("draw --shape 2,3,4,64 --pixels 24".split()) == 0
    whole = capsys.readouterr().out
    assert main("draw --shape 2,3,4,64 --pixels 24 --lower 0,0 --start 0,0,0,0".split()) == 0
    assert capsys.readouterr().out == whole
    assert (
        main("draw --mode w --shape 8,3,4,64 --pixels 8 --lower=-1 --start 0,0,-1,0".split()) == 0
    )
    padded = capsys.readouterr().out
    assert main("draw --mode w --shape 8,3,4,64 --pixels 8 --lower=-1".split()) == 0
    assert capsys.readouterr().out == padded


def test_lint_checks_an_example(capsys):
    assert main(["lint", "--example", "ptx-14"]) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out
    assert main(["lint", "--example", "ptx-17"]) == 0
    assert "the box begins inside the image" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "map.json is not JSON"),
        ("[1]", "map.json must hold one JSON object"),
        ('{"a": 1}', "map.json: Im2colMap has no argument a; it has shape, dtype"),
    ],
)
def test_lint_names_the_file_and_the_form(capsys, tmp_path, text, said):
    file = tmp_path / "map.json"
    file.write_text(text)
    assert main(["lint", str(file)]) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert "lint --help" in printed


def test_the_form_that_lint_shows_is_a_sound_map(capsys, tmp_path):
    file = tmp_path / "map.json"
    file.write_text(re.search(r"\{.*?\}", JSON_FORM, re.DOTALL)[0])
    assert main(["lint", str(file)]) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out


def test_lint_names_missing_arguments(capsys, tmp_path):
    file = tmp_path / "map.json"
    file.write_text('{"shape": [8, 9, 14, 64], "lower_corner": [0, 0]}')
    assert main(["lint", str(file)]) == 1
    assert "error: upper_corner = None: is missing" in capsys.readouterr().out


def test_lint_command(capsys, tmp_path):
    sound = "--shape 8,8,5,16 --lower=-1,-1 --upper=-1,-1 --channels 8 --start 0,0,0,0".split()
    assert main(["lint", *sound]) == 0
    assert "0 errors, 0 warnings" in capsys.readouterr().out
    assert main(["lint", *sound, "--pixels", "2000"]) == 1
    printed = capsys.readouterr().out
    assert "error: pixels_per_column = 2000: must be in [1, 1024]" in printed
    assert "1 error, 0 warnings" in printed
    file = tmp_path / "map.json"
    file.write_text('{"globalDim": [16, 5, 8, 8], "tensorRank": 4}')
    assert main(["lint", str(file)]) == 1
    assert "globalStrides = None: is missing" in capsys.readouterr().out
