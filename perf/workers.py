"""Processes that answer requests, and those of a comparison, each with its tree and kernel cache.

A request is one line of JSON, and so is its answer; `side.serve` is the other end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from perf.record import ROOT, git

START = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"


class Process:
    """A Python process. It sleeps in a read between requests, and so does the one that asks while
    the answer is made: the two never compete for a CPU.

    Parameters
    ----------
    name : str
        For messages.
    command : arguments of the Python interpreter
    folder : working directory
    environment : variables in addition to those of this process
    """

    def __init__(
        self, name: str, command: Sequence[str], folder: str, environment: Mapping[str, str]
    ) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches only the process that asks
        )

    def ask(self, request: str, **arguments: Any) -> dict[str, Any]:
        """The answer to one request.

        Raises
        ------
        ValueError
            The process ended; its message is on standard error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(json.dumps({"request": request, **arguments}) + "\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            status = self._process.wait()
            raise ValueError(
                f"the process of {self.name} ended during {request!r} with exit status {status}; "
                "its message, if any, is above"
            )
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        with suppress(BrokenPipeError):
            self._process.communicate()


class Tree(NamedTuple):
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
