"""Where objects have what compiled code reads: as stated, and Python does without it elsewhere."""

import re

import pytest
from processes import run_python

from implicit_conv.kernels.cpu.runtime import objects

PROGRAM = """
import re
import time
from implicit_conv.kernels.cpu.runtime import objects

{planted}  # before any code is compiled that depends on it

import numpy as np
from implicit_conv import conv2d, plan_conv2d
from implicit_conv.process.preparation import prepares_later
from implicit_conv.tools.info import describe

numbers = np.random.default_rng(5)
x, w = (numbers.integers(-9, 9, shape).astype("f") for shape in ((1, 4, 6, 5), (4, 4, 3, 3)))
pieces = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
expected = np.einsum("nchwrs,kcrs->nkhw", pieces, w)
plan = plan_conv2d(x.shape, w.shape)
packed, out = plan.pack(w), np.empty_like(expected)
calls = set()
for step in range(100):
    x += 1
    expected += w.sum((1, 2, 3))[:, None, None]
    bias = np.full(4, step, np.float32)
    assert (conv2d(x, w) == expected).all()
    assert (plan(x, packed, bias=bias) == expected + step).all()
    assert plan(x, packed, out=out) is out and (out == expected).all()
    calls |= {{type(call.again).__name__ for call in plan._calls}}
    while prepares_later():  # the code that would make such calls
        time.sleep(0.01)
prepared = plan.prepare(x, packed, out)
x -= 100
assert (prepared() == expected - 100 * w.sum((1, 2, 3))[:, None, None]).all()
print(*sorted(calls), *re.findall("objects.*", describe()))
"""


def test_this_python_stores_objects_as_stated():
    assert objects.differing() == ()


@pytest.mark.parametrize(
    ("differ", "planted"),
    [
        (
            "list, tuple",
            "objects.TUPLE_ITEMS = objects.DATA\n"
            "objects.LIST_FIELDS = objects.LIST_FIELDS._replace(items=objects.DATA)",
        ),
        ("array", "objects.FIELDS = objects.FIELDS._replace(data=objects.FIELDS.shape)"),
    ],
)
def test_python_makes_the_calls_where_objects_are_stored_otherwise(differ, planted):
    found = run_python("-c", PROGRAM.format(planted=planted))
    assert found.returncode == 0, found.stderr
    assert re.match(rf"method objects +this Python differs in {differ} from", found.stdout)


def test_a_hash_is_not_taken_for_an_address():
    assert objects._words_at(-1, 1) == objects._words_at(0, 1) == objects._words_at(24, 1) == ()
