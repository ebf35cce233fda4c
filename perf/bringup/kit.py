"""The packed file: a zip of kernels, arrays and launches, with all that a launch needs.

A launch names its arrays and where their addresses go; nothing in it was made on the machine that
runs it, so a run depends on no planner, compiler or package there.
"""

from __future__ import annotations

import base64
import json
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LIMIT_BYTES = 32 << 20  # of a packed file
FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # of a zip: the same content makes the same file


@dataclass(frozen=True)
class Image:
    """A kernel: `watchdog` says that its cubin was made with one; its PTX never has one."""

    title: str
    entry: str
    watchdog: bool
    threads: int


@dataclass
class Launch:
    """One launch.

    Attributes
    ----------
    step, name : str
    image : str
        The key of its kernel.
    grid, shared_bytes : int
    blob : bytes
        The kernel's argument without maps and addresses.
    maps : tuple of (dict or None)
        Arguments of cuTensorMapEncode* calls; `globalAddress` is the name of an array.
    arrays : dict
        Of what is passed by address: "x", "w", "bias", "residual", "y". Each has bytes, and an
        offset from an aligned address.
    recipe : dict
        How inputs and expected output are made (recipes.py).
    regions : dict of offset in shared memory -> str
    """

    step: str
    name: str
    image: str
    grid: int
    shared_bytes: int
    blob: bytes
    maps: tuple[dict[str, Any] | None, dict[str, Any] | None]
    arrays: dict[str, dict[str, int]]
    recipe: dict[str, Any]
    regions: dict[int, str] = field(default_factory=dict)


@dataclass
class Kit:
    """Everything in a packed file; `door` has (name in `files`, entry) of the kernels that networks
    run through torch, by their titles.
    """

    about: dict[str, Any]
    images: dict[str, Image] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    maps: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    door: dict[str, tuple[str, str]] = field(default_factory=dict)

    def of_step(self, step: str) -> Iterator[Launch]:
        """The launches of a step, in order."""
        return (launch for launch in self.launches if launch.step == step)

    def keep(self, name: str, array: Array) -> str:
        """Store an array; its name in `files`."""
        self.files[name] = np.ascontiguousarray(array).tobytes()
        return name

    def provide(self, title: str, image: bytes, entry: str) -> None:
        """Store a kernel of `door`."""
        name = f"door/{len(self.door)}"
        self.files[name], self.door[title] = image, (name, entry)

    def save(self, path: Path) -> int:
        """Write the file; its size in bytes.

        Raises
        ------
        ValueError
            It would have `LIMIT_BYTES` or more.
        """
        manifest = {
            "about": self.about,
            "images": {key: asdict(image) for key, image in self.images.items()},
            "launches": [_written(launch) for launch in self.launches],
            "maps": self.maps,
            "door": self.door,
        }
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            members = {"manifest.json": json.dumps(manifest).encode(), **self.files}
            for name, content in members.items():
                info = zipfile.ZipInfo(name, FIRST_DATE)
                archive.writestr(info, content, zipfile.ZIP_DEFLATED)
        size = path.stat().st_size
        if size >= LIMIT_BYTES:
            path.unlink()
            raise ValueError(f"{size} bytes, but a kit has less than {LIMIT_BYTES}; pack less")
        return size


def _written(launch: Launch) -> dict[str, Any]:
    return {**asdict(launch), "blob": base64.b64encode(launch.blob).decode()}


def read(path: Path) -> Kit:
    """The kit in a packed file."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(files.pop("manifest.json"))
    return Kit(
        about=manifest["about"],
        images={key: Image(**image) for key, image in manifest["images"].items()},
        launches=[_read(launch) for launch in manifest["launches"]],
        maps=[(name, arguments) for name, arguments in manifest["maps"]],
        files=files,
        door=manifest.get("door", {}),  # which kits of older checkouts lack
    )


def _read(given: dict[str, Any]) -> Launch:
    regions = {int(offset): name for offset, name in given["regions"].items()}
    blob, (first, second) = base64.b64decode(given["blob"]), given["maps"]
    return Launch(**{**given, "regions": regions, "blob": blob, "maps": (first, second)})
