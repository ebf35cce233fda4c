"""A plugin of pytest that puts our filters in the place of scipy's, of which scipy's tests know
nothing: SCIPY_FILTERS names the way, "patch" or "names".
"""

import collections
import os

import scipy.ndimage

from implicit_conv import ndimage
from implicit_conv.ndimage import calls, filters, rank_worth, ranks, worth

computed = collections.Counter()
run, compute = filters.Chain.run, ranks.compute


def counted(chain, *arrays):
    """Count what chains compute, and scipy's C does not."""
    run(chain, *arrays)
    computed["steps"] += chain.steps


def counted_ranks(*args):
    """Count what launches of ranks compute."""
    done = compute(*args)
    computed["steps"] += done
    return done


def known(ours, theirs):
    """Newer tests look up which libraries a function takes: ours takes those of scipy's."""
    try:
        from scipy._lib._array_api import xp_capabilities_table as table
    except ImportError:
        return
    if theirs in table:
        table[ours] = table[theirs]


def replace_names():
    """Ours as attributes of scipy.ndimage."""
    for name in ndimage.FILTERS:
        theirs, ours = getattr(scipy.ndimage, name), getattr(ndimage, name)
        known(ours, theirs)
        setattr(scipy.ndimage, name, ours)


def patch():
    """All that call scipy.ndimage call ours."""
    theirs = {name: getattr(scipy.ndimage, name) for name in ndimage.FILTERS}
    ndimage.patch()
    for name, function in theirs.items():
        known(getattr(scipy.ndimage, name), function)


filters.Chain.run, ranks.compute = counted, counted_ranks
for decision in ("box", "wide", "along", "ranked"):
    setattr(rank_worth, decision, lambda *args: True)
worth.pays = lambda *args: True  # scipy's tests filter small images
calls.LARGE = 0
{"patch": patch, "names": replace_names}[os.environ["SCIPY_FILTERS"]]()


def pytest_terminal_summary(terminalreporter):
    """Print how many filters were computed."""
    terminalreporter.write_line(f"computed: {dict(computed)}")
