"""What disks and crashes do to a file: functions of its bytes, of another file's, and of chance."""

import random
from collections.abc import Callable

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


DAMAGES: list[Damage] = [truncate, flip, erase, append, scramble, swap, outdate]


def damaged(content: bytes, other: bytes, number: int) -> bytes:
    """The damage of this number, always the same, and never none."""
    rng = random.Random(number)
    result = content
    while result == content:  # a file may end in zeros already
        result = DAMAGES[number % len(DAMAGES)](content, other, rng)
    return result
