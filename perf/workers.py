"""Sides of a comparison: concurrent processes, each with its own tree and kernel cache."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from perf.process import Process
from perf.record import ROOT, git

START = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


@dataclass(frozen=True)
class Tree:
    """A tree to import implicit_conv from, and the folder of its compiled kernels."""

    path: Path
    cache: Path
    name: str  # as the user named it, with the commit if it is a revision


@contextmanager
def tree(name: str, cache: Path) -> Iterator[Tree]:
    """The tree called `name`: a folder that holds the package, or a git revision.

    A revision is checked out into a temporary worktree.

    Raises
    ------
    ValueError
        `name` is neither a folder with the package nor a revision.
    """
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "implicit_conv").is_dir():
            raise ValueError(f"the folder {name} does not contain implicit_conv")
        yield Tree(folder.resolve(), cache, str(folder))
        return
    try:
        commit = git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except subprocess.CalledProcessError:
        raise ValueError(f"{name} is neither a folder nor a git revision") from None
    with tempfile.TemporaryDirectory() as parent:
        path = Path(parent) / "tree"
        git("worktree", "add", "--detach", str(path), commit)
        try:
            yield Tree(path, cache, f"{name} ({commit[:10]})")
        finally:
            git("worktree", "remove", "--force", str(path))


def worker(kind: str, where: Tree, threads: int, folder: str) -> Process:
    """A process that answers the requests of `side`, with code of the tree `where`.

    Raises
    ------
    ValueError
        The process imports another tree.
    """
    environment = {
        "PYTHONPATH": str(where.path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "IMPLICIT_CONV_CACHE_DIR": str(where.cache),
    }
    command = ["-c", START, str(ROOT / "perf" / "side.py"), kind, str(threads)]
    process = Process(where.name, command, folder, environment)
    found = process.ask("hello")["tree"]
    if Path(found) != where.path.resolve():
        process.close()
        raise ValueError(f"implicit_conv was imported from {found}, not from {where.name}")
    return process


@contextmanager
def workers(sides: Mapping[str, Tree], threads: int) -> Iterator[dict[str, Process]]:
    """One process for each side, all at the same time; "torch" is a rival, the others are ours."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        alive = {}
        for name, where in sides.items():
            kind = "torch" if name == "torch" else "ours"
            alive[name] = stack.enter_context(closing(worker(kind, where, threads, folder)))
        yield alive
