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
from implicit_conv.kernels.cpu.runtime import known_calls as table
from implicit_conv.kernels.cpu.runtime import xla as words
from implicit_conv.kernels.cpu.runtime.active_threads import OWN_STARTER
from implicit_conv.kernels.cpu.runtime.compiled.known_calls import entry_of, state_word
from implicit_conv.kernels.cpu.runtime.compiled.program import run_in_block
from implicit_conv.kernels.cpu.runtime.compiled.source import of_function
from implicit_conv.kernels.cpu.runtime.objects import LOW_HALF, WORD

KEY_BYTES = words.MOST_KEY_BYTES
# Offsets in C structures: of a call frame, of each list in it, of a buffer and of an extension.
EXTENSION, API, STAGE, ARGS, RETS, ATTRS = 8, 16, 32, 40, 80, 120
SIZE, ITEMS, ATTR_ITEMS = 16, 32, 40
BUFFER_DTYPE, BUFFER_DATA, BUFFER_RANK, BUFFER_DIMS = 16, 24, 32, 40
KIND, NEXT, METADATA = 8, 16, 24
VERSION, TRAITS, STATE_TYPE = 24, 32, 40  # of the metadata
CREATE_ERROR = 48  # of the API
IS_METADATA, EXECUTE, S64 = 1, 3, 5  # values of its enumerations
NOT_FOUND, RESOURCE_EXHAUSTED = 5, 8  # codes of errors
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


def buffer_words(buffer: int, at: int) -> int:
    """Write the words of a buffer; the place after them."""
    rank = memory.read(buffer + BUFFER_RANK)
    memory.write(at, memory.read(buffer + BUFFER_DTYPE) & LOW_HALF)
    memory.write(at + WORD, rank)
    at += 2 * WORD
    dims = memory.read(buffer + BUFFER_DIMS)
    for axis in range(min(rank, words.MOST_AXES)):  # the table has no key with more
        memory.write(at, memory.read(dims + WORD * axis))
        at += WORD
    return at


def run_frame(frame: int, state: int) -> int:
    """Run the program that a frame asks for, if its buffers are what that is for."""
    args, rets, attrs = frame + ARGS, frame + RETS, frame + ATTRS
    entry, x, w, y, end = 0, 0, 0, 0, 0
    key = memory.stack(KEY_BYTES)
    lists = memory.read(args + SIZE) == 2 and memory.read(rets + SIZE) == 1
    if lists and memory.read(attrs + SIZE) == 1:
        scalar, items = memory.read(memory.read(attrs + ATTR_ITEMS)), memory.read(args + ITEMS)
        x, w = memory.read(items), memory.read(items + WORD)
        y = memory.read(memory.read(rets + ITEMS))
        if memory.read(scalar) & LOW_HALF == S64:
            memory.write(key, memory.read(memory.read(scalar + WORD)))
            end = buffer_words(y, buffer_words(w, buffer_words(x, key + WORD)))
            entry = entry_of(state, key, end)
    if entry == 0:
        return error(frame, state_word(state, words.UNKNOWN_MESSAGE), NOT_FOUND)
    x, w = memory.read(x + BUFFER_DATA), memory.read(w + BUFFER_DATA)
    y, program = memory.read(y + BUFFER_DATA), state_word(entry, table.PROGRAM)
    process = state_word(state, table.PROCESS)
    starter = memory.read(process + OWN_STARTER)
    if not run_in_block(process, starter, program, x, w, 0, 0, y):
        message = state_word(state, words.MEMORY_MESSAGE)
        return error(frame, message, RESOURCE_EXHAUSTED)
    return 0


def handler(frame: int) -> int:
    """What XLA calls. A frame that begins with STATE_OF is ours: it tells the state's address."""
    if memory.read(frame) == words.STATE_OF:
        memory.write(_state_cell(), memory.read(frame + WORD))
        return 0
    state = memory.read(_state_cell())
    extension = memory.read(frame + EXTENSION)
    while extension != 0:
        if memory.read(extension + KIND) & LOW_HALF == IS_METADATA:
            metadata = memory.read(extension + METADATA)
            memory.write(metadata + VERSION, state_word(state, words.MINOR) << 32)
            memory.write(metadata + TRAITS, 0)
            if memory.read(metadata) > STATE_TYPE:
                memory.write(metadata + STATE_TYPE, 0)
            return 0
        extension = memory.read(extension + NEXT)
    if memory.read(frame + STAGE) & LOW_HALF != EXECUTE:
        return 0
    return run_frame(frame, state)


HANDLER = of_function(types.int64(types.int64), handler)  # handler(frame)
