"""The function that XLA calls for our custom calls: it finds a program by its key, and runs it.

It takes an XLA_FFI_CallFrame of XLA's typed foreign function interface, whose C structures are in
``xla/ffi/api/c_api.h``, and returns an XLA_FFI_Error, or 0. XLA calls it on threads of its own; it
needs neither Python nor the GIL.
"""

from __future__ import annotations

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.internals import ir, types
from implicit_conv.kernels.cpu.emit.intrinsics import emitting, function_at
from implicit_conv.kernels.cpu.emit.vector import I64
from implicit_conv.kernels.cpu.runtime.compiled.program import run_in_block
from implicit_conv.kernels.cpu.runtime.compiled.source import of_function
from implicit_conv.kernels.cpu.runtime.xla import (
    BLOCKS,
    BUFFER_WORDS,
    DTYPE,
    MEMORY_MESSAGE,
    MINOR,
    MISMATCH_MESSAGE,
    PROGRAM,
    RANK,
    SHAPE,
    STARTER,
    STATE_OF,
    TABLE,
    UNKNOWN_MESSAGE,
)

WORD = 8  # bytes
LOW_HALF = (1 << 32) - 1  # of a word, which C calls an int
# Offsets in C structures: of a call frame, of each list in it, of a buffer and of an extension.
EXTENSION, API, STAGE, ARGS, RETS, ATTRS = 8, 16, 32, 40, 80, 120
SIZE, ITEMS, ATTR_ITEMS = 16, 32, 40
BUFFER_DTYPE, BUFFER_DATA, BUFFER_RANK, BUFFER_DIMS = 16, 24, 32, 40
KIND, NEXT, METADATA = 8, 16, 24
VERSION, TRAITS, STATE_TYPE = 24, 32, 40  # of the metadata
CREATE_ERROR = 48  # of the API
IS_METADATA, EXECUTE, S64 = 1, 3, 5  # values of its enumerations
INVALID_ARGUMENT, RESOURCE_EXHAUSTED, NOT_FOUND = 3, 8, 5  # codes of errors
ERROR_BYTES = 28  # of XLA_FFI_Error_Create_Args
# XLA_FFI_Error *function(XLA_FFI_Error_Create_Args *)
_create_error = function_at("create_error", I64, I64)


@emitting(types.int64())
def _state_cell(builder: ir.IRBuilder) -> ir.Value:
    """The address of a word that belongs to this code: it holds the address of the state."""
    name = "implicit_conv.xla.state"
    cell = builder.module.globals.get(name)
    if cell is None:
        cell = ir.GlobalVariable(builder.module, I64, name)
        cell.linkage, cell.initializer = "internal", ir.Constant(I64, 0)
    return builder.ptrtoint(cell, I64)


def error(frame: int, message: int, number: int) -> int:
    """A new error of XLA's."""
    arguments = memory.stack(64)
    memory.write(arguments, ERROR_BYTES)
    memory.write(arguments + WORD, 0)
    memory.write(arguments + 2 * WORD, message)
    memory.write(arguments + 3 * WORD, number)
    return _create_error(memory.read(memory.read(frame + API) + CREATE_ERROR), arguments)


def program_of(state: int, key: int) -> int:
    """The address of the program with this key; 0 if there is none."""
    table = memory.read(state + WORD * TABLE)
    last = memory.read(table) - 1
    table += 2 * WORD
    place = key & last
    while True:
        found = memory.read(table + 2 * WORD * place)
        if found == key:
            return memory.read(table + 2 * WORD * place + WORD)
        if found == 0:
            return 0
        place = (place + 1) & last


def is_like(buffer: int, wanted: int) -> bool:
    """Whether a buffer has the dtype and the shape that a program is for."""
    rank = memory.read(wanted + WORD * RANK)
    if memory.read(buffer + BUFFER_DTYPE) & LOW_HALF != memory.read(wanted + WORD * DTYPE):
        return False
    if memory.read(buffer + BUFFER_RANK) != rank:
        return False
    dims = memory.read(buffer + BUFFER_DIMS)
    for axis in range(rank):
        if memory.read(dims + WORD * axis) != memory.read(wanted + WORD * (SHAPE + axis)):
            return False
    return True


def run_frame(frame: int, state: int) -> int:
    """Run the program that a frame asks for, if its buffers are what that is for."""
    args, rets, attrs = frame + ARGS, frame + RETS, frame + ATTRS
    mismatch = memory.read(state + WORD * MISMATCH_MESSAGE)
    lists = memory.read(args + SIZE) == 2 and memory.read(rets + SIZE) == 1
    if not lists or memory.read(attrs + SIZE) != 1:
        return error(frame, mismatch, INVALID_ARGUMENT)
    scalar = memory.read(memory.read(attrs + ATTR_ITEMS))
    if memory.read(scalar) & LOW_HALF != S64:
        return error(frame, mismatch, INVALID_ARGUMENT)
    record = program_of(state, memory.read(memory.read(scalar + WORD)))
    if record == 0:
        return error(frame, memory.read(state + WORD * UNKNOWN_MESSAGE), NOT_FOUND)
    items = memory.read(args + ITEMS)
    x, w = memory.read(items), memory.read(items + WORD)
    y = memory.read(memory.read(rets + ITEMS))
    wanted, size = record + WORD * (PROGRAM + 1), WORD * BUFFER_WORDS
    if not (is_like(x, wanted) and is_like(w, wanted + size) and is_like(y, wanted + 2 * size)):
        return error(frame, mismatch, INVALID_ARGUMENT)
    x, w = memory.read(x + BUFFER_DATA), memory.read(w + BUFFER_DATA)
    y = memory.read(y + BUFFER_DATA)
    program, starter = memory.read(record + WORD * PROGRAM), memory.read(state + WORD * STARTER)
    if not run_in_block(state + WORD * BLOCKS, program, x, w, 0, 0, y, starter):
        return error(frame, memory.read(state + WORD * MEMORY_MESSAGE), RESOURCE_EXHAUSTED)
    return 0


def handler(frame: int) -> int:
    """What XLA calls. A frame that begins with STATE_OF is ours: it tells the state's address."""
    if memory.read(frame) == STATE_OF:
        memory.write(_state_cell(), memory.read(frame + WORD))
        return 0
    state = memory.read(_state_cell())
    extension = memory.read(frame + EXTENSION)
    while extension != 0:
        if memory.read(extension + KIND) & LOW_HALF == IS_METADATA:
            metadata = memory.read(extension + METADATA)
            memory.write(metadata + VERSION, memory.read(state + WORD * MINOR) << 32)
            memory.write(metadata + TRAITS, 0)
            if memory.read(metadata) > STATE_TYPE:
                memory.write(metadata + STATE_TYPE, 0)
            return 0
        extension = memory.read(extension + NEXT)
    if memory.read(frame + STAGE) & LOW_HALF != EXECUTE:
        return 0
    return run_frame(frame, state)


HANDLER = of_function(types.int64(types.int64), handler)  # handler(frame)
