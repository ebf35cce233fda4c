"""Known convolutions of torch, as compiled code finds and runs them without a frame of Python.

torch's dispatcher calls one function, that of `compiled.torch_calls`, with objects of Python. It
describes the call in words, looks them up in a table, and runs the program that was added for them.
All else, it hands on to a function of Python.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from implicit_conv.kernels.cpu.runtime import active_threads
from implicit_conv.kernels.cpu.runtime.code import builtin
from implicit_conv.kernels.cpu.runtime.program import Words

# Words of the state: objects by their addresses, functions of torch's C interface, and what a
# handle of a tensor is.
OBJECTS = (
    *("python", "mkldnn", "deterministic", "new"),  # called
    "config",  # a name
    *("scopes", "own_scope"),  # see `settings.process_settings`
    *("true", "false", "none", "list", "int", "tensor", "parameter"),  # compared
)
FUNCTIONS = (
    *("aoti_torch_get_dim", "aoti_torch_get_sizes", "aoti_torch_get_strides"),
    *("aoti_torch_get_dtype", "torch_get_const_data_ptr", "torch_get_mutable_data_ptr"),
    "torch_get_num_threads",
)
(
    PYTHON,
    MKLDNN,
    DETERMINISTIC,
    NEW,
    CONFIG,
    SCOPES,
    OWN_SCOPE,
    TRUE,
    FALSE,
    NONE,
    LIST,
    INTEGER,
    TENSOR,
    PARAMETER,
    GET_DIM,
    GET_SIZES,
    GET_STRIDES,
    GET_DTYPE,
    CONST_DATA,
    DATA,
    GET_THREADS,
    HANDLE,
    MODE,
    TABLE,
    TEAM_WORDS,
    BLOCKS,
) = range(26)
BLOCK_SIZES = 64  # words from BLOCKS on: a block of each size that no run uses
# Words of an entry: an object that owns all that it points to, the program, the tuple of arguments
# for a new result, bytes of an element, the words of the key, and then the key itself.
OWNER, PROGRAM, ARGUMENTS, ITEM_BYTES, KEY_WORDS, KEY = range(6)
# A key: the state, three tensors with their number of axes, dtype, sizes and strides, four lists
# with their lengths, whether it is transposed, and the groups.
STATE_WORDS = 5  # settings, torch's number of threads, its two flags, and the mode
MOST_AXES, MOST_SIZES = 5, 3
MOST_KEY_BYTES = 8 * (STATE_WORDS + 3 * (2 + 2 * MOST_AXES) + 4 * (1 + MOST_SIZES) + 2)
PLACES = 1024  # of the table: pairs of a hash and the address of an entry
MOST_ENTRIES = 256
PRIME, SHIFT = 0x100000001B3, 40  # of the hash, FNV-1a by words; its upper bits are the place
MASK = (1 << 64) - 1


def hash_of(words: Sequence[int]) -> int:
    """The hash of a key, as an unsigned number."""
    found = 0
    for word in words:
        found = ((found ^ (word & MASK)) * PRIME) & MASK
    return found


class TorchCalls:
    """The table, and the function that looks into it.

    Attributes
    ----------
    function : builtin function
        What torch's dispatcher calls for ``aten::convolution``, with its set of keys first.
    describe : builtin function
        The words of such a call after those of the state, as bytes; none if it cannot be told
        apart from all others.
    """

    def __init__(
        self, objects: Mapping[str, Any], functions: Mapping[str, int], handle: int
    ) -> None:
        """`objects` and `functions` have the names of OBJECTS and FUNCTIONS; `handle` is the offset
        in bytes of the handle of a tensor in its object.

        Raises
        ------
        CompilationError
            This thread must not compile; see `preparation`.
        """
        self._objects = [objects[name] for name in OBJECTS]  # which live as long as this
        self._state = np.zeros(BLOCKS + BLOCK_SIZES, np.int64)
        words = [*map(id, self._objects), *(functions[name] for name in FUNCTIONS), handle]
        self._state[: len(words)] = words
        self._places = np.zeros((PLACES, 2), np.int64)
        self._state[TABLE] = self._places.ctypes.data
        self._state[TEAM_WORDS] = active_threads.ADDRESS
        self._entries = dict[tuple[int, ...], Any]()
        self._lock = threading.Lock()
        self.function: Callable[..., Any] = builtin(".runtime.compiled.torch_calls:CONVOLUTION")(
            self._state
        )
        self.describe: Callable[..., bytes] = builtin(".runtime.compiled.torch_calls:DESCRIBE")(
            self._state
        )

    def __len__(self) -> int:
        return len(self._entries)

    def set_mode(self, mode: int) -> None:
        """Find calls that were added with this mode alone."""
        self._state[MODE] = mode

    def add(
        self,
        state: Sequence[int],
        described: bytes,
        program: Words,
        new: tuple[Any, ...],
        item_bytes: int,
        owned: Any,
    ) -> None:
        """Have calls with these words run a program. `state` has STATE_WORDS words, and is what the
        call depends on besides its arguments; `new` makes the result, and the objects `owned` live
        as long as the entry.
        """
        key = (*state, *np.frombuffer(described, np.int64).tolist())
        owner = [program, new, owned]
        head = [id(owner), program.address, id(new), item_bytes, len(key)]
        words = np.array([*head, *key], np.int64)
        owner.append(words)
        found = hash_of(key)
        with self._lock:
            if key in self._entries:  # Python saw a call that it must see, or threads at once
                return
            if len(self._entries) >= MOST_ENTRIES:
                self._drop()
            self._entries[key] = owner
            place = (found >> SHIFT) % PLACES
            while self._places[place, 1]:
                place = (place + 1) % PLACES
            self._places[place, 0] = ctypes.c_int64(found).value
            self._places[place, 1] = words.ctypes.data  # last: who finds it finds all of it

    def clear(self) -> None:
        """Drop all entries."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self._places[:, 1] = 0
        self._entries.clear()  # a run under way holds the owner of its entry

    def renew_lock(self) -> None:
        """Forget a lock that another thread may hold, which a forked child does not have."""
        self._lock = threading.Lock()
