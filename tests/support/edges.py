"""Numbers from the edges of int64, and the check that a call refuses them with a clear message."""

import math

import numpy as np
from hypothesis import strategies as st

POWERS = (8, 16, 31, 32, 47, 61, 63, 64, 70)
EDGES = (
    *sorted({sign * 2**n + more for n in POWERS for sign in (1, -1) for more in (-1, 0, 1)}),
    *map(np.int64, (3, 2**63 - 1, -(2**63))),
    *(np.int8(-128), np.uint8(255), np.int32(2**31 - 1), np.uint64(2**64 - 1)),
    *(2.0, 1e300, math.inf, math.nan, np.float32(1), True, np.True_),
)
SMALL = (0, 1, 2, 3, 5, -1)


def numbers(*usual, unusual=EDGES):
    """One of the `usual` numbers, or one time in six of the `unusual` ones."""
    return st.integers(0, 5).flatmap(lambda n: st.sampled_from(usual if n else unusual))


def flat(value):
    """The numbers of nested sequences and dicts."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return [number for entry in value for number in flat(entry)]
    return [value]


def answer(function, *arguments, words=(), **named):
    """The result, or None if the call is refused with a message that says what is wrong.

    It holds the name of an argument, one of the given numbers, or one of `words`.
    """
    try:
        return function(*arguments, **named)
    except MemoryError:
        return None
    except (ValueError, TypeError) as error:
        texts = {str(number) for number in flat((arguments, named)) if np.isscalar(number)}
        numbers = {text for text in texts if len(text) > 1}  # a digit could be in any message
        assert any(word in str(error) for word in (*words, *named, *numbers)), repr(error)
        return None
