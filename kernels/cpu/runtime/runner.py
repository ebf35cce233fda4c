"""What runs programs from Python; `program` has none of it, so that it imports no compiler."""

from __future__ import annotations

from implicit_conv.kernels.cpu.runtime.active_threads import ADDRESS
from implicit_conv.kernels.cpu.runtime.code import python_code


class Runner:
    """Runs programs from Python.

    Raises
    ------
    CompilationError
        This thread must not compile; see `preparation`.
    """

    def __init__(self) -> None:
        self._run = python_code(".runtime.compiled.program:RUN_PROGRAM")

    def __call__(self, program: int, x: int, w: int, bias: int, y: int) -> bool:
        """Run the program whose words are at this address on arrays at others, without the GIL; a
        bias at 0 is none. False if there is no memory for it, or where compiled code cannot start
        the threads that it has.
        """
        return bool(self._run(ADDRESS, program, x, w, bias, 0, y))
