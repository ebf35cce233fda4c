"""What disks, crashes and accidents do to a file: its content changes, or it is a file no more."""

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[bytes, bytes, random.Random], bytes]


def truncate(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """The file ends too early, perhaps at once."""
    return content[: rng.choice([0, 1, rng.randrange(len(content))])]


def flip(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """One bit is wrong, half of the time among the first 64 bytes."""
    position = rng.randrange(rng.choice([64, len(content)]))
    changed = content[position] ^ 1 << rng.randrange(8)
    return content[:position] + bytes([changed]) + content[position + 1 :]


def erase(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """All bytes after some position are zeros, as after a power failure."""
    length = rng.randrange(len(content))
    return content[:length] + bytes(len(content) - length)


def append(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """The file goes on."""
    return content + rng.randbytes(rng.randint(1, 100))


def scramble(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """Random bytes follow the right header."""
    return content[:48] + rng.randbytes(rng.randint(0, 1000))


def swap(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """It is another file of the cache, which is sound."""
    return other


def outdate(content: bytes, other: bytes, rng: random.Random) -> bytes:
    """The header is that of another version."""
    return b"implicit_conv 0\n" + content[16:]


def fifo(path: Path) -> None:
    """Who opens it to read waits for a writer."""
    os.mkfifo(path, 0o600)


def socket(path: Path) -> None:
    """It cannot be opened."""
    os.mknod(path, stat.S_IFSOCK | 0o600)


def folder(path: Path) -> None:
    """No file can take its place before it is removed."""
    path.mkdir()


def endless(path: Path) -> None:
    """A link to a device that can be read for ever."""
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    """A link that leads to itself."""
    path.symlink_to(path.name)


def huge(path: Path) -> None:
    """A file of 4 GiB that takes no space on the disk."""
    path.touch(0o600)
    os.truncate(path, 4 << 30)


DAMAGES: list[Damage] = [truncate, flip, erase, append, scramble, swap, outdate]
OBSTACLES: list[Callable[[Path], None]] = [fifo, socket, folder, endless, loop, huge]


def damage(path: Path, other: Path, number: int) -> None:
    """Do the damage of this number to a file, always the same; `other` is another sound file."""
    kind = number % (len(DAMAGES) + len(OBSTACLES))
    if kind >= len(DAMAGES):
        path.unlink()
        OBSTACLES[kind - len(DAMAGES)](path)
        return
    rng = random.Random(number)
    content = changed = path.read_bytes()
    while changed == content:  # a file may end in zeros already
        changed = DAMAGES[kind](content, other.read_bytes(), rng)
    path.write_bytes(changed)
