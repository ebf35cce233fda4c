"""Memory that a network frees is not returned to the system and faulted in again."""

import ctypes

import pytest
from processes import output_of

pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

CODE = """
import ctypes, torch
import implicit_conv.torch as door

class Mallinfo2(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Mallinfo2

def mapped(size):
    "MiB that malloc maps for a block of so many, and returns to the system as it is freed."
    before = mallinfo2().hblkhd
    block = torch.empty(size << 20, dtype=torch.uint8)
    return mallinfo2().hblkhd - before >> 20

before = mapped(20)
with door.enable():
    print(before, mapped(30))
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="this is not glibc 2.33")
def test_large_blocks_are_kept():
    assert output_of(CODE).split() == ["20", "0"]
