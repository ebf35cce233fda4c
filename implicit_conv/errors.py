"""Exceptions; their messages give the rule, the numbers and a way out, which may be a command."""

import os.path
import sys
from collections.abc import Iterable

QUOTED = 80  # characters that a message quotes of another library's error at most


class ShapeError(ValueError):
    """Shapes, strides, padding or layouts do not match."""


class DTypeError(TypeError):
    """A dtype is not supported, or two dtypes do not match."""


class PlanError(ValueError):
    """An algorithm, precision or device does not support the problem."""


class UsageError(ValueError):
    """Options of a command are missing, invalid or do not match."""


class DriverError(RuntimeError):
    """The CUDA driver refused a call, or a kernel failed."""


class TileError(RuntimeError):
    """A tile could not be read, computed or written; those before it are written."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The hint "; did you mean 'conv2d'?" for a name that is none of those known, or nothing."""
    import difflib  # here, because a call that works needs no hint

    words = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), words, 1)
    return f"; did you mean {words[close[0]]!r}?" if close else ""


def install(*requirements: str) -> str:
    """The command that installs these packages where this package runs, which may be an environment
    that is not active. It needs no checkout.

    Parameters
    ----------
    requirements : str
        Names with versions, such as "scipy>=1.11", as an extra of pyproject.toml has them.
    """
    import re  # both here, because a call that works needs no hint
    import shutil

    pip = shutil.which("pip")
    own = pip is not None and os.path.dirname(pip) == os.path.dirname(sys.executable)
    words = [*(["pip"] if own else [sys.executable, "-m", "pip"]), "install", *requirements]
    # All shells understand double quotes.
    return " ".join(word if re.fullmatch(r"[\w./:\\-]+", word) else f'"{word}"' for word in words)


def require(needed: str, door: str) -> None:
    """Import a neighbour's library for a door, in a version that the door knows.

    Parameters
    ----------
    needed : str
        The library and its oldest version, such as "torch>=2.13".
    door : str
        The module of this package that needs it.

    Raises
    ------
    ImportError
        It is not installed, or is older.
    """
    import importlib.util  # here, because most calls need no library of others

    name, oldest = needed.split(">=")
    if importlib.util.find_spec(name) is None:
        raise ImportError(f"{name} is not installed: {install(needed)}")
    version = importlib.import_module(name).__version__
    known = tuple(map(int, oldest.split(".")))
    if tuple(map(int, version.partition("+")[0].split(".")[: len(known)])) < known:
        raise ImportError(
            f"{name} {version} is installed, but {door} needs at least {oldest}: {install(needed)}"
        )
