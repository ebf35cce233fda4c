"""A plugin of pytest that puts our functions in the place of scipy.signal's, for scipy's tests.

choose_conv_method stays scipy's: numpy's assert_equal takes no subclass of str, as our result is.
"""

import collections
import functools
import types

import scipy.signal

from implicit_conv import signal
from implicit_conv.signal import choice, convolutions, filters

COMPUTED = collections.Counter()


def counted(function):
    """The function; its calls are counted."""

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        COMPUTED[function.__name__] += 1
        return function(*args, **kwargs)

    return wrapped


def replace_names():
    """Ours as attributes of scipy.signal; newer tests look up which libraries a function takes."""
    try:
        from scipy._lib._array_api import xp_capabilities_table as table
    except ImportError:
        table = {}
    theirs = {name: getattr(scipy.signal, name) for name in signal.served()}
    for module in (choice, convolutions, filters):  # what is left to scipy stays scipy's
        module.scipy_signal = types.SimpleNamespace(**theirs)
    for name, function in theirs.items():
        if name == "choose_conv_method":
            continue
        ours = getattr(signal, name)
        if function in table:
            table[ours] = table[function]
        setattr(scipy.signal, name, ours)


filters.conv1d = counted(filters.conv1d)
convolutions.conv2d = counted(convolutions.conv2d)
first, second, third = convolutions.CONVOLUTIONS
convolutions.CONVOLUTIONS = (counted(first), counted(second), third)
replace_names()


def pytest_terminal_summary(terminalreporter):
    """Print how many convolutions were computed."""
    terminalreporter.write_line(f"computed: {dict(COMPUTED)}")
