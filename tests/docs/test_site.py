"""The built site: what each page has, names for its search, and the explorer, which its pages link
to and which needs no other file.

`.ci/run site` names the folder of the site in SITE.
"""

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import ROOT

from implicit_conv import ndimage
from implicit_conv.tma.page.explore import page

PLACE = "tutorials/explore.html"
HREF = re.compile(r'href="([^"#]+)')


@pytest.fixture(scope="module")
def site():
    """The folder of a built site."""
    if "SITE" not in os.environ:
        pytest.skip("SITE does not name the folder of a built site")
    return Path(os.environ["SITE"])


@pytest.fixture
def extension(monkeypatch):
    """docs/site_extension.py"""
    pytest.importorskip("sphinx", reason="sphinx is missing: pip install -e '.[docs]'")
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    monkeypatch.delitem(sys.modules, "site_extension", raising=False)
    import site_extension

    return site_extension


def test_the_explorer_is_written_after_a_build(extension, tmp_path):
    (tmp_path / "tutorials").mkdir()
    app = SimpleNamespace(outdir=str(tmp_path))
    extension.write_explorer(app, RuntimeError("the build failed"))
    assert not (tmp_path / PLACE).exists()
    extension.write_explorer(app, None)
    is_the_explorer(tmp_path)


def is_the_explorer(folder):
    """The page is that of `implicit-conv explore`, with a way back to the site."""
    text = (folder / PLACE).read_text(encoding="utf-8")
    way_back = re.search(r"<nav>.*?</nav>", text)[0]
    assert text.replace(way_back, "") == page()
    assert HREF.findall(way_back) == ["../index.html", "tma.html"]


def test_the_site_has_the_explorer(site):
    is_the_explorer(site)
    for link in HREF.findall((site / PLACE).read_text(encoding="utf-8")):
        assert (site / PLACE).parent.joinpath(link).exists(), link


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("index.html", PLACE),
        ("tutorials/index.html", "explore.html"),
        ("tutorials/tma.html", "explore.html"),
        ("explanation/shifted-view.html", f"../{PLACE}"),
    ],
)
def test_pages_link_to_the_explorer(site, name, link):
    text = (site / name).read_text(encoding="utf-8")
    article = text[text.index("<article") : text.index("</article")]
    assert link in HREF.findall(article)


def test_the_repository_links_to_its_page_too():
    assert "docs/tutorials/explore.md" in (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("index.md", "tutorials/tma.md"):
        assert "explore.md)" in (ROOT / "docs" / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["index.html", "tutorials/first-ten-minutes.html"])
def test_pages_have_copy_buttons_an_icon_and_the_repository(site, name):
    text = (site / name).read_text(encoding="utf-8")
    title, project = re.search(r"<title>(.*?) &#8212; (.*?)</title>", text).groups()
    assert title != project
    assert "copybutton.js" in text
    (icon,) = re.findall(r'<link rel="icon" href="([^"]+)"', text)
    assert (site / name).parent.joinpath(icon).read_text().startswith("<svg")
    header = text[text.index("<header") : text.index("</header")]
    assert 'href="https://github.com/implicit-conv/implicit_conv"' in header


def test_the_search_finds_the_filters_of_ndimage(site):
    """Their names are anchors of the page that has them in a table, and objects of the index."""
    text = (site / "reference/images.html").read_text(encoding="utf-8")
    objects = (site / "searchindex.js").read_text(encoding="utf-8")
    for name in ndimage.served():
        assert f'id="implicit_conv.ndimage.{name}"' in text
        assert f'"{name}"' in objects or f"{name}:" in objects


@pytest.mark.browser
@pytest.mark.parametrize(
    "name", ["index.html", "auto_recipes/sobel_of_uint8.html", "tutorials/first-ten-minutes.html"]
)
def test_each_block_of_code_has_a_copy_button(site, name):
    pytest.importorskip("websocket", reason="websocket-client is not installed")
    from browser import chromium, find

    if find() is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with chromium(find()) as tab:
        tab.open(site / name, 1440, 900)
        blocks, buttons = (
            tab.evaluate(f"document.querySelectorAll('{selector}').length")
            for selector in ("[class*=highlight-] pre", "pre + button.copybtn")
        )
    assert blocks == buttons > 0


@pytest.mark.browser
def test_the_explorer_of_the_site_steps_without_a_network(site):
    pytest.importorskip("websocket", reason="websocket-client is not installed")
    from browser import chromium, find

    if find() is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    with chromium(find()) as tab:
        offline = {"latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        tab.call("Network.enable")
        tab.call("Network.emulateNetworkConditions", offline=True, **offline)
        tab.open(site / "index.html", 1440, 900)
        # The card is one link, and the one in its text lies over it.
        inner = f"""document.querySelector('.sd-card-text a[href="{PLACE}"]')"""
        tab.evaluate(f"{inner}.scrollIntoView({{block: 'center'}})")
        at = "(b => document.elementFromPoint(b.x + b.width / 2, b.y + b.height / 2))"
        under = f"{at}({inner}.getBoundingClientRect()).closest('a').getAttribute('href')"
        assert tab.evaluate(under) == PLACE
        tab.errors.clear()
        tab.open(site / PLACE, 390, 844)
        says = "document.getElementById('says').textContent"
        assert tab.evaluate(says).startswith("Step 1 of 12: ")
        tab.press("ArrowRight")
        assert tab.evaluate(says).startswith("Step 2 of 12: tap ")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert tab.errors == []
