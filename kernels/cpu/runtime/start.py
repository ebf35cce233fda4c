"""What Python calls to start an entry."""

from numba import types

from implicit_conv.kernels.cpu.runtime import entry
from implicit_conv.kernels.cpu.runtime.source import ARRAY, INT, for_python


def make_start():
    """start(blob, scratch, x, w, y, panels, entry): see `entry.start`."""
    return for_python(types.void(ARRAY, INT, ARRAY, ARRAY, ARRAY, INT, INT), entry.start)


def make_run_counted():
    """run_counted(entry, blob, thread): see `entry.run_counted`."""
    return for_python(types.void(INT, INT, INT), entry.run_counted)


def make_address_of():
    """address_of(array): the address of an array's first element."""

    def address_of(array):
        return array

    return for_python(INT(ARRAY), address_of)
