"""``implicit-conv cache``: look at the cache of compiled kernels, check it or clear it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from datetime import date
from typing import Any

from implicit_conv.cpu.phrases import count
from implicit_conv.kernels.disk import Store, store
from implicit_conv.kernels.disk_files import CHOICE, KERNEL, TEMPORARY, VARIABLE, File


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser(
        "cache", help="look at the cache of compiled kernels, check it or clear it"
    )
    actions: Any = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    info = actions.add_parser("info", help="print the folder, its files, bytes, limit and age")
    info.set_defaults(run=lambda _: print(describe(store())))
    check = actions.add_parser(
        "check", help="read every file and name the damaged ones; exit status 1 if there are any"
    )
    check.set_defaults(run=lambda _: _check(store()))
    clear = actions.add_parser("clear", help="remove all compiled kernels")
    clear.set_defaults(run=lambda _: _clear(store()))


def describe(kernels: Store) -> str:
    """The lines that `cache info` prints."""
    trouble = kernels.trouble()
    files, choices = kernels.files(KERNEL, TEMPORARY), kernels.files(CHOICE)
    present = sum(file.is_present for file in files)
    rows = {
        "folder": str(kernels.folder),
        "used": f"no, so every process compiles its kernels: {trouble}" if trouble else "yes",
        "files": f"{len(files)}, {present} of them of this version",
        "size": f"{size_of(files)}, at most {kernels.limit:,} ({VARIABLE})",
        "last used": " to ".join(map(_day, (min(files, key=_used), max(files, key=_used))))
        if files
        else "never",
        "tuned": f"{count(len(choices), 'choice')}; `implicit-conv forget` removes them",
    }
    return "\n".join(f"{name:13}{value}" for name, value in rows.items())


def size_of(files: Iterable[File]) -> str:
    """The bytes of files, with the unit."""
    return f"{sum(file.bytes for file in files):,} bytes"


def _check(kernels: Store) -> int:
    number = len(kernels.files(KERNEL, CHOICE))
    damaged = kernels.damaged()
    for name, reason in sorted(damaged.items()):
        print(f"{kernels.folder / name}: {reason}")
    print(f"{len(damaged)} of {count(number, 'file')} in {kernels.folder} are damaged")
    if damaged:
        print(
            "Calls that need them compile them again and replace them; `implicit-conv cache clear`"
            " removes all kernels, `implicit-conv forget` all choices of tune."
        )
    return bool(damaged)


def _clear(kernels: Store) -> int:
    removed = kernels.remove(KERNEL, TEMPORARY)
    print(f"removed {count(len(removed), 'file')}, {size_of(removed)}, from {kernels.folder}")
    left = kernels.files(KERNEL, TEMPORARY)
    if left:
        print(f"{count(len(left), 'file')} could not be removed, such as {left[0].name}")
    return bool(left)


def _used(file: File) -> float:
    return file.used


def _day(file: File) -> str:
    return date.fromtimestamp(file.used).isoformat()
