"""Sides of a comparison: concurrent processes, each with its own tree and kernel cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


class Worker:
    """A process that answers requests; see `side`."""

    def __init__(self, kind: str, where: Tree, threads: int, folder: str) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(where.path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "IMPLICIT_CONV_CACHE_DIR": str(where.cache),
        }
        command = [sys.executable, "-c", START, str(ROOT / "perf" / "side.py"), kind, str(threads)]
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        found = self.ask("hello")["tree"]
        if Path(found) != where.path.resolve():
            raise ValueError(f"implicit_conv was imported from {found}, not from {where.name}")

    def ask(self, request: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one request.

        Raises
        ------
        ValueError
            The process ended; its message is on standard error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"request": request, **arguments}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise ValueError(f"a process ended during {request!r}; see its message above")
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def workers(sides: Mapping[str, Tree], threads: int) -> Iterator[dict[str, Worker]]:
    """One process for each side, all at the same time; "torch" is a rival, the others are ours."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        alive = {}
        for name, where in sides.items():
            worker = Worker("torch" if name == "torch" else "ours", where, threads, folder)
            stack.callback(worker.close)
            alive[name] = worker
        yield alive
