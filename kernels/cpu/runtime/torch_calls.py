"""The describer of convolutions of torch, whose known calls run without a frame of Python.

torch's dispatcher calls one function, that of `compiled.torch_calls`, with objects of Python. Calls
whose words are not in the table, it hands on to a function of Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from implicit_conv.kernels.cpu.runtime.code import builtin
from implicit_conv.kernels.cpu.runtime.known_calls import OWN, KnownCalls

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
) = range(OWN, OWN + 23)
# A key: the state, three tensors with their number of axes, dtype, sizes and strides, four lists
# with their lengths, whether it is transposed, and the groups.
STATE_WORDS = 5  # settings, torch's number of threads, its two flags, and the mode
MOST_AXES, MOST_SIZES = 5, 3
MOST_KEY_BYTES = 8 * (STATE_WORDS + 3 * (2 + 2 * MOST_AXES) + 4 * (1 + MOST_SIZES) + 2)
MOST_ENTRIES = 256
MODULE = ".runtime.compiled.torch_calls:"


class TorchCalls(KnownCalls):
    """Known calls of torch.

    Attributes
    ----------
    function : builtin function
        What torch's dispatcher calls for ``aten::convolution``, with its set of keys first.
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
        of_functions = [functions[name] for name in FUNCTIONS]
        super().__init__([*map(id, self._objects), *of_functions, handle, 0], MOST_ENTRIES)
        made: Any = (builtin(MODULE + name)(self.state) for name in ("CONVOLUTION", "DESCRIBE"))
        self.function, self._describe = made

    def set_mode(self, mode: int) -> None:
        """Find calls that were added with this mode alone."""
        self.state[MODE] = mode

    def described(self, *arguments: Any) -> tuple[int, ...]:
        """The words of a call after those of the state; none if it cannot be told apart from all
        others.
        """
        return tuple(np.frombuffer(self._describe(*arguments), np.int64).tolist())
