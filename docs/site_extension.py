"""What the site has beyond its extensions: links to sources, names for its search, the help of
commands, the explorer.
"""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).parent
# A link out of docs/: a source file or folder, which is read where the repository is.
OUTSIDE = re.compile(r"(?<=\]\()(?:\.\./)+(?![^)#]*\.(?:svg|png))[^)]*(?=\))")


def link_to_sources(app: Any, name: str, text: list[str]) -> None:
    """Give links to files outside of docs/ the address that they have in the repository."""
    folder = (DOCS / name).parent
    text[0] = OUTSIDE.sub(lambda found: _address(app, folder, found[0]), text[0])


def _address(app: Any, folder: Path, link: str) -> str:
    path = os.path.relpath(os.path.normpath(folder / link.partition("#")[0]), DOCS)
    if not path.startswith("../"):
        return link  # another page
    return f"{app.config.html_context['repository']}/blob/main/{path.removeprefix('../')}"


def is_described(app: Any, what: str, name: str, value: Any, skip: bool, options: Any) -> bool:
    """Whether a member has no entry: a field of a named tuple stands among its attributes."""
    return skip or (getattr(value, "__doc__", None) or "").startswith("Alias for field number")


class FilterNames(SphinxDirective):
    """The functions of implicit_conv.ndimage for search and index; a table of links shows them."""

    def run(self) -> list[nodes.Node]:
        """Targets without text."""
        from implicit_conv import ndimage  # the site alone needs it

        names = "\n   ".join(ndimage.served())
        options = "   :module: implicit_conv.ndimage\n   :no-typesetting:"
        return self.parse_text_to_nodes(f".. py:function:: {names}\n{options}\n")


class CommandHelp(Directive):
    """What ``implicit-conv --help`` and each of its commands print, as sections."""

    def run(self) -> list[nodes.Node]:
        """The sections."""
        from implicit_conv.tools.cli import make_parser  # as above

        return _sections(make_parser())


def _sections(parser: argparse.ArgumentParser) -> list[nodes.Node]:
    title = parser.prog
    section = nodes.section(ids=[nodes.make_id(title)])
    section += nodes.title(text=title)
    section += nodes.literal_block(text=parser.format_help(), language="none")
    found: list[nodes.Node] = [section]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                found += _sections(each)
    return found


def write_explorer(app: Any, failure: Exception | None) -> None:
    """Write the explorer in place of its page, which tells readers of the repository of it."""
    from implicit_conv.tma.page.explore import page  # as above

    if failure is None:
        back = '<nav><a href="../index.html">implicit_conv</a> / <a href="tma.html">TMA</a></nav>'
        text = page().replace("<header>", f"<header>{back}", 1)
        (Path(app.outdir) / "tutorials" / "explore.html").write_text(text, encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Register all."""
    app.connect("source-read", link_to_sources)
    app.connect("autodoc-skip-member", is_described)
    app.connect("build-finished", write_explorer)
    app.add_directive("command-help", CommandHelp)
    app.add_directive("filter-names", FilterNames)
    return {"parallel_read_safe": True}
