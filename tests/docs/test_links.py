"""Links of Markdown pages lead to files of the tree, and to headings that these have."""

import re

import pytest
from processes import ROOT

# README has whole addresses, because it is read where packages are found, too.
REPOSITORY = "https://github.com/implicit-conv/implicit_conv/"
PAGES = sorted(
    path
    for folder in (".", "docs", ".github")
    for path in (ROOT / folder).glob("*.md" if folder == "." else "**/*.md")
)


def links(text):
    """What the Markdown links and pictures of a page point to, code left out."""
    text = re.sub(r"^```.*?^```$|`[^`\n]+`", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text)


def slug(heading):
    """The anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower())
    return kept.replace(" ", "-")


def anchors(path):
    text = path.read_text(encoding="utf-8")
    text_alone = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    named = re.findall(r'<a (?:id|name)="([^"]+)"|^\(([\w-]+)\)=$', text, re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text_alone, re.MULTILINE)
    return {slug(heading) for heading in headings} | {name for pair in named for name in pair}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    lost = []
    for found in links(page.read_text(encoding="utf-8")):
        link = "".join(found)
        here = page.parent
        for kind in ("blob/main/", "raw/main/"):
            if link.startswith(REPOSITORY + kind):
                here, link = ROOT, link.removeprefix(REPOSITORY + kind)
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (here / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert not lost
