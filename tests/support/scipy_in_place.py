"""A plugin of pytest that puts our filters in the place of scipy's, of which scipy's tests know
nothing: SCIPY_FILTERS names the way, "patch" or "names".
"""

import collections
import functools
import os

import scipy.ndimage

from implicit_conv import ndimage
from implicit_conv.ndimage import filters, worth

COMPUTED = collections.Counter()


def count(name):
    """Count what a function computes, and scipy's C does not."""
    function = getattr(filters, name)

    @functools.wraps(function)
    def counted(*args):
        result = function(*args)
        COMPUTED[name] += result is not False
        return result

    setattr(filters, name, counted)


def replace_names():
    """Ours as attributes of scipy.ndimage; newer tests look up which libraries a function takes."""
    try:
        from scipy._lib._array_api import xp_capabilities_table as table
    except ImportError:
        table = {}
    for name in ndimage.FILTERS:
        theirs, ours = getattr(scipy.ndimage, name), getattr(ndimage, name)
        if theirs in table:
            table[ours] = table[theirs]
        setattr(scipy.ndimage, name, ours)


for decision in ("line", "window", "mean"):  # scipy's tests filter small images
    setattr(worth, decision, lambda *args: True)
for function_name in ("correlate", "correlate1d", "uniform_filter1d"):
    count(function_name)
{"patch": ndimage.patch, "names": replace_names}[os.environ["SCIPY_FILTERS"]]()


def pytest_terminal_summary(terminalreporter):
    """Print how many filters were computed."""
    terminalreporter.write_line(f"computed: {dict(COMPUTED)}")
