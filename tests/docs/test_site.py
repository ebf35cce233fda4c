"""The built site has the explorer, which its pages link to and which needs no other file.

`.ci/run site` names the folder of the site in SITE.
"""

import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import ROOT

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
    pytest.importorskip("docutils", reason="docutils is missing: pip install -e '.[docs]'")
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
