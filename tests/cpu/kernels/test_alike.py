"""Arrays of repeated calls: each difference that numpy sees is found."""

import itertools
import sys

import numpy as np
import pytest

from implicit_conv.kernels.cpu.runtime import launch, same_arrays  # noqa: F401  # it loads code
from implicit_conv.kernels.cpu.runtime.same_arrays import NAMES, Record, can_record


@pytest.fixture(autouse=True, params=["compiled code", "Python"])
def compares(request):
    """What compares: compiled code, or Python where that cannot read arrays."""
    before = same_arrays._compare[0]
    if request.param == "Python":
        same_arrays.use(same_arrays.differing)
    yield
    same_arrays.use(before)


MEMORY = np.zeros(4096, np.uint8)
OTHER = np.zeros(4096, np.uint8)


def view(offset=0, shape=(2, 3, 4), dtype="float32", strides=None, memory=MEMORY):
    return np.ndarray(shape, dtype, memory, offset, strides)


def locked(array):
    array.flags.writeable = False
    return array


VARIANTS = {
    "the same elsewhere": view(1024),
    "another shape": view(shape=(2, 4, 3)),
    "an axis less": view(shape=(6, 4)),
    "an axis more": view(shape=(2, 3, 4, 1)),
    "other strides": view(strides=(4, 8, 24)),
    "negative strides": view(1024, strides=(-48, 16, 4)),
    "a stride of 0": view(strides=(0, 16, 4)),
    "another dtype of this size": view(dtype="int32"),
    "foreign bytes": view(dtype=">f4"),
    "unaligned": view(1),
    "read-only": locked(view()),
    "a subclass": view().view(np.memmap),
    "a scalar": np.float32(1),
    "a list": [1.0],
    "None": None,
}


def is_alike(first, second, written):
    """What numpy says."""
    if first is None or second is None:
        return first is second
    return (
        type(second) is np.ndarray
        and (first.shape, first.strides, first.dtype)
        == (second.shape, second.strides, second.dtype)
        and second.flags.aligned
        and (second.flags.writeable or not written)
    )


@pytest.mark.parametrize("place", range(5), ids=NAMES)
@pytest.mark.parametrize("name", VARIANTS)
def test_what_differs_is_found_at_its_place(place, name):
    arrays = [view(memory=np.zeros(4096, np.uint8)) for _ in range(5)]
    differing = Record(*arrays).comparison()
    assert differing(*arrays) == 0
    arrays[place] = VARIANTS[name]
    alike = is_alike(view(), VARIANTS[name], written=NAMES[place] == "out")
    assert differing(*arrays) == (0 if alike else place + 1)


@pytest.mark.parametrize("place", range(5), ids=NAMES)
def test_none_is_not_an_array(place):
    arrays = [view(memory=np.zeros(4096, np.uint8)) for _ in range(5)]
    arrays[place] = None
    differing = Record(*arrays).comparison()
    assert differing(*arrays) == 0
    arrays[place] = view(memory=OTHER)
    assert differing(*arrays) == place + 1


@pytest.mark.parametrize("place", range(4), ids=NAMES[:4])
def test_memory_shared_with_the_output_is_found(place):
    forms = [
        {"shape": (2, 3, 4), "strides": (48, 16, 4)},
        {"shape": (2, 3, 4), "strides": (-48, 16, -4)},
        {"shape": (3, 1), "strides": (40, 4)},
        {"shape": ()},
        {"shape": (0, 4)},
    ]
    found = set()
    for mine, its in itertools.product(forms, repeat=2):
        arrays = [None] * 5
        arrays[place], arrays[4] = view(2048, **mine, memory=OTHER), view(2048, **its)
        differing = Record(*arrays).comparison()
        assert differing(*arrays) == 0
        for offset in range(2048 - 240, 2048 + 240, 4):
            arrays[place] = view(offset, **mine)
            shares = np.may_share_memory(arrays[place], arrays[4])
            assert differing(*arrays) == (place + 1 if shares else 0), (mine, its, offset)
            found.add(shares)
    assert found == {False, True}


def test_fixed_arrays_stay_where_they_are():
    arrays = [view(memory=np.zeros(4096, np.uint8)) for _ in range(5)]
    differing = Record(*arrays, fixed=True).comparison()
    assert differing(*arrays) == 0
    for place, array in enumerate(arrays):
        moved = [*arrays[:place], array.copy(), *arrays[place + 1 :]]
        assert differing(*moved) == place + 1


def test_the_dtypes_of_a_record_live_as_long_as_what_compares():
    """Another dtype at the address of one that was freed would be taken for it."""
    dtype = np.dtype("float32", metadata={"unit": "m"})
    before = sys.getrefcount(dtype)
    differing = Record(np.zeros(3, dtype), None, None, None, None).comparison()
    assert sys.getrefcount(dtype) > before
    del differing
    assert sys.getrefcount(dtype) == before


def test_a_record_tells_arrays_of_numpy_alone():
    assert can_record(None, view(), view(shape=(1,) * 5))
    for name in ("a subclass", "a scalar", "a list"):
        assert not can_record(view(), VARIANTS[name])
    assert not can_record(view(shape=(1,) * 6))
