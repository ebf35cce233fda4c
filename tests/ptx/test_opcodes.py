"""Opcodes that the interpreter covers and no test mentions: the list is kept, and is to be empty.

An opcode counts as tested where a test of this folder has it in a kernel's text.
"""

import re
from pathlib import Path

from implicit_conv.ptx.machine.control import TABLE
from implicit_conv.ptx.text.handlers import HANDLERS
from implicit_conv.ptx.text.translate_async import MODES
from implicit_conv.ptx.text.translate_memory import OPERATIONS
from implicit_conv.ptx.text.translate_scalar import FLOAT, INTEGER

TEXT = "\n".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
UNTESTED = {
    "ldu",  # an old form of ld.global.nc
    "membar",  # an old form of fence
    "bar.cta.sync",
    "bar.cta.arrive",
    "barrier.arrive",
    "barrier.cta.sync",
    "barrier.cta.arrive",
}


def covered():
    """The names of all opcodes, as far as they decide what is computed."""
    yield from INTEGER
    yield from (name for name in HANDLERS if not any(row.split(".")[0] == name for row in INTEGER))
    yield from (f"{name}\\S*f(?:32|64)" for name in FLOAT)
    yield from (prefix for prefix, *_ in TABLE)
    yield from (rf'(?:(?:atom|red)\S*\.|"){name}' for name in OPERATIONS)
    yield from (rf"cp\.async\.bulk\.tensor\S*\.{mode}" for mode in MODES if "w" not in mode)


def test_untested_opcodes_are_known():
    names = {name for name in covered() if not re.search(rf'(?:\b|(?=")){name}[.\s;]', TEXT)}
    assert names == UNTESTED
