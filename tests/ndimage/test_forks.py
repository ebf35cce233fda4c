"""Filters on several threads in a forked child, which has none of its parent's threads."""

import os

import pytest
from processes import output_of

pytest.importorskip("scipy.ndimage", reason="pip install '.[ndimage]'")

CODE = """
import os, warnings
import numpy as np
import scipy.ndimage
import implicit_conv
from implicit_conv import ndimage

warnings.simplefilter("ignore")
implicit_conv.config(num_threads=2)
x = np.random.default_rng(0).random((700, 800)).astype("f")
calls = [("gaussian_filter", 2), ("median_filter", 3), ("maximum_filter", 5)]

def right():
    return all(
        (getattr(ndimage, name)(x, size) == getattr(scipy.ndimage, name)(x, size)).all()
        for name, size in calls
    )

assert right()
child = os.fork()
if child == 0:
    os._exit(0 if right() else 1)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_makes_a_team_of_its_own():
    assert output_of(CODE, timeout=120).split() == ["0"]
