"""What torch's dispatcher calls for a convolution: known ones run here, others in Python.

All of it runs with the GIL, but for the program itself. Where an object is not what this code
expects, the function of Python gets the call, and with it all errors. No function of Python is
called for a known one: Dynamo would trace it, and modes of torch would see what it calls.
"""

from __future__ import annotations

from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.emit.internals import types
from implicit_conv.kernels.cpu.emit.intrinsics import function_at
from implicit_conv.kernels.cpu.emit.vector import I32, I64
from implicit_conv.kernels.cpu.runtime import known_calls as table
from implicit_conv.kernels.cpu.runtime import torch_calls as words
from implicit_conv.kernels.cpu.runtime.compiled.known_calls import entry_of, run, state_word
from implicit_conv.kernels.cpu.runtime.compiled.source import CALL, INT, of_function
from implicit_conv.kernels.cpu.runtime.objects import FIELDS, LIST_FIELDS, LOW_HALF, WORD

ARGUMENT_COUNT = 10  # of aten::convolution, with the set of keys
X, W, BIAS, STRIDE, PADDING, DILATION, TRANSPOSED, ADDED, GROUPS = range(1, 10)
TYPE = FIELDS.kind  # of any object
KEY_BYTES = words.MOST_KEY_BYTES

_call = types.ExternalFunction("PyObject_Call", INT(INT, INT, INT))
_call_without = types.ExternalFunction("PyObject_CallNoArgs", INT(INT))
_vectorcall = types.ExternalFunction("PyObject_Vectorcall", INT(INT, INT, INT, INT))
_attribute = types.ExternalFunction("PyObject_GetAttr", INT(INT, INT))
_context_value = types.ExternalFunction("PyContextVar_Get", INT(INT, INT, INT))
_hold = types.ExternalFunction("Py_IncRef", INT(INT))
_drop = types.ExternalFunction("Py_DecRef", INT(INT))
_integer = types.ExternalFunction("PyLong_AsLongLong", INT(INT))
_bytes = types.ExternalFunction("PyBytes_FromStringAndSize", INT(INT, INT))
_error = types.ExternalFunction("PyErr_Occurred", INT())

_ask = function_at("ask", I32, I64)  # int function(void *place)
# int function(AtenTensorHandle handle, void *place)
_ask_of = function_at("ask_of", I32, I64, I64)


def told(state: int, function: int, tensor: int) -> int:
    """The word that a function of torch tells of a tensor, such as an address; -1 if it fails."""
    place = memory.stack(8)
    memory.write(place, 0)
    handle = tensor + state_word(state, words.HANDLE)
    if _ask_of(state_word(state, function), handle, place) != 0:
        return -1
    return memory.read(place)


def is_plain(state: int, tensor: int) -> bool:
    """Whether an object is a tensor or a parameter, and of no other class."""
    kind = memory.read(tensor + TYPE)
    return kind == state_word(state, words.TENSOR) or kind == state_word(state, words.PARAMETER)


def tensor_words(state: int, tensor: int, at: int) -> int:
    """Write the words of a tensor; the place after them, 0 if it has none."""
    if not is_plain(state, tensor):
        return 0
    axes = told(state, words.GET_DIM, tensor)
    if axes < 1 or axes > words.MOST_AXES:
        return 0
    sizes, strides = told(state, words.GET_SIZES, tensor), told(state, words.GET_STRIDES, tensor)
    dtype = told(state, words.GET_DTYPE, tensor)
    if sizes == -1 or strides == -1 or dtype == -1:
        return 0
    memory.write(at, axes)
    memory.write(at + WORD, dtype & LOW_HALF)
    at += 2 * WORD
    for axis in range(axes):
        memory.write(at, memory.read(sizes + WORD * axis))
        memory.write(at + WORD, memory.read(strides + WORD * axis))
        at += 2 * WORD
    return at


def integer_word(state: int, value: int, at: int) -> int:
    """Write an integer; the place after it, 0 if the object is none."""
    if memory.read(value + TYPE) != state_word(state, words.INTEGER):
        return 0
    found = _integer(value)
    if found == -1 and _error() != 0:
        return -1
    memory.write(at, found)
    return at + WORD


def list_words(state: int, values: int, at: int) -> int:
    """Write a list of integers; the place after it, 0 if it is none, -1 after an error."""
    if memory.read(values + TYPE) != state_word(state, words.LIST):
        return 0
    count = memory.read(values + LIST_FIELDS.length)
    if count > words.MOST_SIZES:
        return 0
    memory.write(at, count)
    at += WORD
    items = memory.read(values + LIST_FIELDS.items)
    for number in range(count):
        if at > 0:
            at = integer_word(state, memory.read(items + WORD * number), at)
    return at


def describe(state: int, objects: int, begin: int) -> int:
    """Write the words of a call; the place after them, 0 if it has none, -1 after an error."""
    at = tensor_words(state, memory.read(objects + WORD * X), begin)
    if at == 0:
        return 0
    at = tensor_words(state, memory.read(objects + WORD * W), at)
    if at == 0:
        return 0
    bias = memory.read(objects + WORD * BIAS)
    if bias == state_word(state, words.NONE):
        memory.write(at, 0)
        at += WORD
    else:
        at = tensor_words(state, bias, at)
    for number in range(STRIDE, ADDED + 1):
        if at > 0 and number != TRANSPOSED:
            at = list_words(state, memory.read(objects + WORD * number), at)
    if at <= 0:
        return at
    transposed = memory.read(objects + WORD * TRANSPOSED)
    if transposed == state_word(state, words.TRUE):
        memory.write(at, 1)
    elif transposed == state_word(state, words.FALSE):
        memory.write(at, 0)
    else:
        return 0
    return integer_word(state, memory.read(objects + WORD * GROUPS), at + WORD)


def flag(state: int, function: int) -> int:
    """1 or 0, as a function says True or False; -1 if it says neither."""
    value = _call_without(state_word(state, function))
    if value == 0:
        return -1
    _drop(value)  # True and False live on
    if value == state_word(state, words.TRUE):
        return 1
    if value == state_word(state, words.FALSE):
        return 0
    return -1


def settings_word(state: int) -> int:
    """The address of the settings in force; 0 where this thread, or any, is in a block."""
    scopes, place = state_word(state, words.SCOPES), memory.stack(8)
    if memory.read(scopes + LIST_FIELDS.length) != 1:
        return 0
    memory.write(place, 0)
    if _context_value(state_word(state, words.OWN_SCOPE), 0, place) & LOW_HALF != 0:
        return 0
    scope = memory.read(place)
    if scope != 0:
        _drop(scope)  # the context holds it
    if scope != state_word(state, words.NONE):
        return 0
    scope = memory.read(memory.read(scopes + LIST_FIELDS.items))
    config = _attribute(scope, state_word(state, words.CONFIG))
    if config != 0:
        _drop(config)  # the scope holds it
    return config


def write_state(state: int, at: int) -> bool:
    """Write what calls depend on besides their arguments; False where Python is to see to it."""
    config, threads = settings_word(state), memory.stack(8)
    memory.write(threads, 0)
    if config == 0 or _ask(state_word(state, words.GET_THREADS), threads) != 0:
        return False
    memory.write(at, config)
    memory.write(at + WORD, memory.read(threads) & LOW_HALF)
    memory.write(at + 2 * WORD, flag(state, words.MKLDNN))
    memory.write(at + 3 * WORD, flag(state, words.DETERMINISTIC))
    memory.write(at + 4 * WORD, state_word(state, words.MODE))
    return True


def elements(state: int, tensor: int, size: int) -> int:
    """The address of a tensor's elements, to be read; 0 if there is none, or it is not aligned."""
    found = told(state, words.CONST_DATA, tensor)
    if found == -1 or found & (size - 1) != 0:
        return 0
    return found


def run_entry(state: int, entry: int, objects: int) -> int:
    """A new tensor with the result; 0 after an error, or where Python is to see to the call."""
    size = state_word(entry, table.ITEM_BYTES)
    x = elements(state, memory.read(objects + WORD * X), size)
    w = elements(state, memory.read(objects + WORD * W), size)
    bias, sums = memory.read(objects + WORD * BIAS), 0
    if bias != state_word(state, words.NONE):
        sums = elements(state, bias, size)
        if sums == 0:
            return 0
    if x == 0 or w == 0:
        return 0
    y = _call(state_word(state, words.NEW), state_word(entry, table.ARGUMENTS), 0)
    if y == 0:
        return 0
    to, done = 0, False
    if memory.read(y + TYPE) == state_word(state, words.TENSOR):
        to = told(state, words.DATA, y)
    if to > 0:
        process, program = state_word(state, table.PROCESS), state_word(entry, table.PROGRAM)
        done = run(process, program, x, w, sums, 0, to)
    if done:
        return y
    _drop(y)
    return 0


def convolution(owner: int, objects: int, count: int) -> int:
    """The result of a call, a new reference; 0 after an error."""
    state, key = memory.read(owner + FIELDS.data), memory.stack(KEY_BYTES)
    if count >= ARGUMENT_COUNT and write_state(state, key):
        end = describe(state, objects, key + WORD * words.STATE_WORDS)
        if end > 0:
            entry = entry_of(state, key, end)
            if entry != 0:
                held = state_word(entry, table.OWNER)
                _hold(held)
                y = run_entry(state, entry, objects)
                _drop(held)
                if y != 0:
                    return y
    if _error() != 0:
        return 0
    return _vectorcall(state_word(state, words.PYTHON), objects, count, 0)


def description(owner: int, objects: int, count: int) -> int:
    """The words of a call as bytes, of which there are none if it cannot be described."""
    state, begin = memory.read(owner + FIELDS.data), memory.stack(KEY_BYTES)
    end = begin
    if count >= ARGUMENT_COUNT:
        end = describe(state, objects, begin)
    if _error() != 0:
        return 0
    if end <= 0:
        end = begin
    return _bytes(begin, end - begin)


# convolution(keys, x, w, bias, stride, padding, dilation, transposed, added, groups, ...)
CONVOLUTION = of_function(CALL, convolution)
# description(keys, x, w, bias, stride, padding, dilation, transposed, added, groups, ...)
DESCRIBE = of_function(CALL, description)
