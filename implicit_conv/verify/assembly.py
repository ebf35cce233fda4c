"""The SASS of a linked kernel, by nvdisasm, and the report of ptxas on a piece of PTX.

Both programs come as wheels (nvidia-cuda-nvdisasm, nvidia-cuda-nvcc) or with a CUDA toolkit.
"""

from __future__ import annotations

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


def sass(cubin: bytes) -> list[str]:
    """The instructions of a cubin with their modifiers, in order, without operands."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        return INSTRUCTION.findall(_run("nvdisasm", "-c", str(path)))


def assemble(ptx: str, target: str) -> str:
    """The report of ptxas on `ptx`, assembled as a whole program for `target`.

    Raises
    ------
    RuntimeError
        ptxas refuses it.
    """
    return assembled(ptx, target)[1]


def assembled(ptx: str, target: str) -> tuple[bytes, str]:
    """(cubin, report) that ptxas makes of `ptx`, as `assemble`."""
    with tempfile.TemporaryDirectory() as folder:
        path, made = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        path.write_text(ptx)
        report = _run("ptxas", f"-arch={target}", "-O3", "-v", str(path), "-o", str(made))
        return made.read_bytes(), report
