"""demo: the picture first, colours, edges and rivals; no ratio beside other work."""

import re
import sys

import numpy as np
import pytest
from processes import ROOT
from scipy import ndimage

import implicit_conv as ic
from implicit_conv.tools import demo, picture_rivals
from implicit_conv.tools.cli import main

pytest.importorskip("matplotlib")
pytest.importorskip("PIL")
OTHERS = "other programs use 2.0 of 2 CPUs"


@pytest.fixture
def photograph(tmp_path):
    """A small picture: its file."""
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (240, 300, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photograph.png")
    return tmp_path / "photograph.png"


@pytest.fixture
def disturbed(monkeypatch):
    """Lets the guard see these disturbances; holds the threads that it is asked for."""

    def let(*texts):
        said = iter(texts)
        monkeypatch.setattr(demo, "disturbance", lambda count: asked.append(count) or next(said))
        return asked

    asked = []
    return let


def printed(photograph, capsys):
    """(exit status, lines of the demo)."""
    status = main(["demo", str(photograph), "--out", str(photograph.with_name("out.png"))])
    return status, capsys.readouterr().out.splitlines()


def test_a_quiet_demo_tells_ratios_and_what_they_are_of(photograph, capsys, disturbed):
    asked = disturbed("", "")
    status, lines = printed(photograph, capsys)
    assert status == 0 and lines[0].startswith("picture ")
    rows = {line.split()[0]: line for line in lines}
    takes = [re.search(r"about (\S+) ms on (\d+) thread", line) for line in lines]
    estimates, counts = zip(
        *(found.groups() for found in takes if found and "by estimate" in found.string), strict=True
    )
    count = max(map(int, counts))
    assert len(estimates) == 2 and asked == [count, count]
    assert count == ic.plan_conv2d((3, 1, 240, 300), (2, 1, 11, 11)).facts()["threads"]
    assert f" on {count} thread" in rows["measured"]
    told = float(re.search(r"estimate is (\S+) ms", rows["measured"])[1])
    assert told == pytest.approx(sum(map(float, estimates)), abs=2e-3)
    rivals = [line for line in lines if line.startswith("rival ")]
    assert rivals and all(re.search(r" \d+\.\d+: |\d ndimage|\d filter2D", r) for r in rivals)
    assert all("times as long" in line for line in rivals)
    units = float(re.search(r"at most (\S+) units", rows["error"])[1])
    assert units < 100, "zeros as padding would be millions"
    assert photograph.with_name("out.png").stat().st_size > 10_000


@pytest.mark.parametrize("texts", [(OTHERS,), pytest.param(("", OTHERS), marks=pytest.mark.slow)])
def test_a_disturbed_demo_tells_no_ratio_in_one_line(photograph, capsys, disturbed, texts):
    disturbed(*texts)
    status, lines = printed(photograph, capsys)
    assert status == 0 and lines[0].startswith("picture ")
    assert [line for line in lines if OTHERS in line] == [
        f"busy        times are not compared: {OTHERS}"
    ]
    assert "times as long" not in " ".join(line for line in lines if not line.startswith("why"))


@pytest.mark.parametrize(("dtype", "top"), [(np.uint16, 4000), (np.int32, 70000), ("f4", 0.5)])
def test_pictures_of_more_bits_are_scaled_by_their_range(tmp_path, capsys, dtype, top):
    from PIL import Image

    ramp = np.tile(np.linspace(0, top, 256).astype(dtype), (64, 1))
    Image.fromarray(ramp).save(tmp_path / "ramp.tif")
    seen = demo.load_picture(str(tmp_path / "ramp.tif"))
    expected = np.repeat((ramp.astype(float) / ramp.max())[..., None], 3, axis=2)
    np.testing.assert_allclose(seen, expected, atol=1e-6)
    assert f"0 to {top:g}," in capsys.readouterr().out


@pytest.mark.parametrize("value", [None, 7])
def test_pictures_with_numbers_that_are_not_finite(tmp_path, capsys, value):
    """NaN marks what was not measured: the rest is scaled as without it."""
    from PIL import Image

    values = np.full((16, 20), np.nan, "f4")
    if value is not None:
        values[1:] = np.linspace(2, value, 20)
        values[0, 1:3] = np.inf, -np.inf
    Image.fromarray(values).save(tmp_path / "heights.tif")
    seen = demo.load_picture(str(tmp_path / "heights.tif"))
    expected = np.zeros((16, 20))
    if value is not None:
        expected[1:], expected[0, 1] = np.linspace(0, 1, 20), 1
    np.testing.assert_allclose(seen, np.repeat(expected[..., None], 3, axis=2), atol=1e-6)
    assert ("2 to 7," if value else "0 to 0,") in capsys.readouterr().out


def test_without_rivals_it_says_what_to_install(photograph, capsys, disturbed, monkeypatch):
    disturbed("", "")
    monkeypatch.setattr(picture_rivals, "_has", lambda module: False)
    status, lines = printed(photograph, capsys)
    assert status == 0
    assert "rival       none is installed to compare with: " in "\n".join(lines)


def test_colour_stays_colour_and_rivals_compute_the_same_planes(photograph):
    picture = demo.load_picture(str(photograph))
    colour, gray = demo.filter_bank()
    operands = demo.as_operands(picture, colour, gray)
    planes = picture_rivals.as_planes(
        *(ic.conv2d(x, w, padding="same", padding_mode="reflect") for x, w in operands)
    )
    expected = [
        ndimage.correlate(picture.astype(float), taps[..., None], mode="mirror")
        for taps in colour.values()
    ]
    expected += [
        ndimage.correlate(picture.mean(axis=2, dtype=float), taps, mode="mirror")
        for taps in gray.values()
    ]
    filters = [*colour.values()], [*gray.values()]
    pictures = picture, picture.mean(axis=2)
    rivals = picture_rivals.picture_rivals(pictures, *filters, 1)
    assert rivals
    for found in planes, *(function() for function in rivals.values()):
        assert [plane.shape for plane in found] == [(240, 300, 3)] * 2 + [(240, 300)] * 7
        for plane, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(plane, right, atol=2e-5)


def test_every_map_has_its_filter_in_a_corner(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    picture = np.random.default_rng(0).random((30, 40, 3), np.float32)
    colour, gray = demo.filter_bank()
    filters = {**colour, **gray}
    planes = [picture, picture, *([picture[..., 0]] * len(gray))]
    demo.draw(picture, filters, planes, tmp_path / "out.png")
    first, *maps = drawn[0].axes
    assert not first.child_axes
    for axis, taps in zip(maps, filters.values(), strict=True):
        (inset,) = axis.child_axes
        np.testing.assert_array_equal(inset.images[0].get_array(), taps)


def test_what_is_missing_is_what_pip_installs(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert main(["demo"]) == 2
    assert 'pip install "matplotlib>=3.8" "Pillow>=10"' in capsys.readouterr().err


def test_the_picture_of_the_pages_is_the_demo_of_now(tmp_path):
    """WebP loses some: the mean difference to the demo's picture is below 3 of 255."""
    from PIL import Image

    page = ROOT / "docs" / "demo.webp"
    assert page.stat().st_size < 150_000
    picture = demo.load_picture(None)
    colour, gray = demo.filter_bank()
    operands = demo.as_operands(picture, colour, gray)
    planes = picture_rivals.as_planes(
        *(ic.conv2d(x, w, padding="same", padding_mode="reflect") for x, w in operands)
    )
    demo.draw(picture, {**colour, **gray}, planes, tmp_path / "now.png")
    shown, now = (
        np.asarray(Image.open(path).convert("RGB"), float) for path in (page, tmp_path / "now.png")
    )
    assert shown.shape == now.shape
    assert np.abs(shown - now).mean() < 3
