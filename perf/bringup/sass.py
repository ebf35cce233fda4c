"""The SASS of a linked kernel, by nvdisasm, and the report of ptxas on a piece of PTX.

Both programs come as wheels (nvidia-cuda-nvdisasm, nvidia-cuda-nvcc) or with a CUDA toolkit.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.MULTILINE)


def tool(name: str) -> Path | None:
    """The path of a program of the CUDA toolkit, from the wheels or from PATH."""
    for folder in sorted(Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*/bin")):
        if (folder / name).exists():
            return folder / name
    found = shutil.which(name)
    return Path(found) if found else None


def _run(name: str, *arguments: str) -> str:
    path = tool(name)
    if path is None:
        raise FileNotFoundError(f"{name} is neither among the installed wheels nor on PATH")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} failed: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


@functools.lru_cache(maxsize=1)  # instructions are counted, and then looked for
def listing(cubin: bytes) -> str:
    """The SASS of a cubin with its labels, as nvdisasm prints it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        return _run("nvdisasm", "-c", str(path))


def instructions(text: str) -> list[str]:
    """The instructions of a listing with their modifiers, in order, without operands."""
    return INSTRUCTION.findall(text)


def sass(cubin: bytes) -> list[str]:
    """The instructions of a cubin with their modifiers, in order, without operands."""
    return instructions(listing(cubin))


def calls(text: str) -> int:
    """The number of calls of subroutines in a listing; some branches are calls of local labels."""
    return len(re.findall(r"\bCALL\b.*`\((?!\.L_)", text))


def mainloop(text: str, kinds: tuple[str, ...]) -> int:
    """The number of instructions in the innermost loops that contain an instruction of `kinds`.

    A loop reaches from a label to a branch back to it. Where two overlap in part, the longer one is
    a wait that was moved out of the loop and returns to its middle, and is no loop.
    """
    names, labels, found = _branches(text)
    loops: list[tuple[int, int]] = []
    back = [(labels[to], at + 1) for at, to in found if labels.get(to, at + 1) <= at]
    for start, end in sorted(back, key=lambda loop: loop[1] - loop[0]):
        if not any(a < start < b < end or start < a < end < b for a, b in loops):
            loops.append((start, end))
    with_kinds = [loop for loop in loops if any(n.startswith(kinds) for n in names[slice(*loop)])]
    inside: set[int] = set()
    for a, b in with_kinds:
        if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in with_kinds):
            inside |= set(range(a, b))
    return len(inside)


def _branches(text: str) -> tuple[list[str], dict[str, int], list[tuple[int, str]]]:
    """(instructions, the number of the one after each label, (number, label) of each branch)."""
    names: list[str] = []
    labels: dict[str, int] = {}
    found: list[tuple[int, str]] = []
    for line in text.splitlines():
        if label := re.match(r"(\.L\w+):", line):
            labels[label[1]] = len(names)
        elif instruction := INSTRUCTION.match(line):
            if branch := re.search(r"\bBRA\b.*`\((\.L\w+)\)", line):
                found.append((len(names), branch[1]))
            names.append(instruction[1])
    return names, labels, found


def assembled(ptx: str, target: str) -> tuple[bytes, str]:
    """(cubin, report) that ptxas makes of `ptx`, assembled as a whole program for `target`.

    Raises
    ------
    RuntimeError
        ptxas refuses it.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, made = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        path.write_text(ptx)
        report = _run("ptxas", f"-arch={target}", "-O3", "-v", str(path), "-o", str(made))
        return made.read_bytes(), report
