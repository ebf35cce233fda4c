"""What runs programs from Python; `program` has none of it, so that it imports no compiler."""

from __future__ import annotations

import numpy as np

from implicit_conv.kernels.cpu.runtime.active_threads import starter
from implicit_conv.kernels.cpu.runtime.code import python_code


class Runner:
    """Runs programs from Python.

    Raises
    ------
    CompilationError
        This thread must not compile; see `preparation`.
    """

    def __init__(self) -> None:
        self._blocks = np.zeros(64, np.int64)  # a block of each size that no run uses
        self._run = python_code(".runtime.compiled.program:RUN_PROGRAM")
        self._place = int(self._blocks.ctypes.data)

    def __call__(self, program: int, x: int, w: int, bias: int, y: int, residual: int = 0) -> bool:
        """Run the program whose words are at this address on arrays at others, without the GIL; a
        bias or a residual at 0 is none. False if there is no memory for it, or where compiled code
        cannot start the threads that it has.
        """
        return bool(self._run(self._place, program, x, w, bias, residual, y, starter()))
