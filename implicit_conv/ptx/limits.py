"""What a text or a launch may ask for: limits of the hardware, and of time and memory here.

Each is compared before memory or time is spent. Sizes are in bytes.
"""

from __future__ import annotations

from typing import TextIO

# CUDA C++ Programming Guide, technical specifications per compute capability.
MOST_THREADS = 1024  # of a block
BLOCK = (1024, 1024, 64)  # threads of a block along x, y, z
GRID = ((1 << 31) - 1, 65535, 65535)  # blocks along x, y, z
CLUSTER = 8  # blocks of a cluster, on every GPU that has them
PARAMETER_BYTES = 32764  # of a kernel (PTX ISA 5.1, .param)
SPACE_BYTES = {  # of the variables of a space; of .shared with the dynamic part
    "shared": 227 << 10,
    "local": 512 << 10,
    "param": 512 << 10,  # of calls: they are kept in local memory
    "const": 64 << 10,
    "global": 1 << 30,  # the interpreter's own limit
}
ALIGNMENT = 1 << 16  # of a variable; the interpreter's own limit, as are those below

TEXT = 1 << 24  # characters of a module, and of a kernel with the functions that it calls inlined
HEADER = 1 << 16  # characters of the declaration of a function
STATEMENTS = 1 << 17  # of a kernel with the functions that it calls inlined
REGISTERS = 1 << 18  # of such a kernel, as declared: they are virtual
DEPTH = 100  # of braces, and of calls
DIGITS = 18  # of a count or an alignment
BLOCK_INSTRUCTIONS = 256  # of a basic block: a warp's turn is some blocks long
SECONDS = 60.0  # of a run


def read_text(file: TextIO, name: object) -> str:
    """All of a file, which may be a device without an end; `name` is its name in messages.

    Raises
    ------
    ValueError
        It is longer than a text may be, or not UTF-8.
    """
    try:
        text = file.read(TEXT + 1)
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is no text: {error}") from error
    if len(text) > TEXT:
        raise ValueError(f"{name} has more than {TEXT} characters, the most that are read")
    return text
