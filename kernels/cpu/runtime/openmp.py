"""Threads of an OpenMP library that the process uses already, as a team; see `region`.

Idle threads of OpenMP spin for a while, on the CPUs that helpers of our own would need.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from implicit_conv.kernels.cpu.runtime.code import code, python_code

WORDS = ENTRY, BLOB, LIMIT, THREAD_NUM, CONTROL = range(5)  # of what a region reads


class OpenMpTeam:
    """Launches as parallel regions of one OpenMP library.

    Parameters
    ----------
    parallel, thread_num : int
        The addresses of its functions ``GOMP_parallel`` and ``omp_get_thread_num``.
    threads : function
        How many threads its other regions have. Ours have as many, since libgomp ends threads that
        a smaller region leaves over, and starts them again for a larger one.
    name : str
        What `info` and `explain` call it.
    """

    def __init__(
        self, parallel: int, thread_num: int, threads: Callable[[], int], name: str
    ) -> None:
        self._parallel, self._thread_num, self._threads = parallel, thread_num, threads
        self.name = name
        self._region = code(".runtime.compiled.region:make_region").address()
        self._launch = python_code(".runtime.compiled.region:make_launch")

    @property
    def helpers(self) -> int:
        """How many threads may help a caller."""
        return self._threads() - 1

    def run(self, entry: int, blob: int, threads: int) -> None:
        """Run an entry on up to `threads` threads; return when all items of its blob are done."""
        words = np.array((entry, blob, threads, self._thread_num, 0), np.int64)
        self._launch(self._parallel, self._region, words, self._threads())
