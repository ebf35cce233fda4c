"""Threads of an OpenMP library that the process uses already, as a team; see `region`.

Idle threads of OpenMP spin for a while, on the CPUs that helpers of our own would need.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from implicit_conv.kernels.cpu.runtime.active_threads import PARALLEL, REGION, THREAD_NUM
from implicit_conv.kernels.cpu.runtime.code import code, python_code


class OpenMpTeam:
    """Launches as parallel regions of one OpenMP library.

    Parameters
    ----------
    parallel, thread_num : int
        The addresses of its functions ``GOMP_parallel`` and ``omp_get_thread_num``.
    threads : function
        How many threads its regions have, unless one asks for another number. Ours have as many,
        since libgomp ends threads that a smaller region leaves over, and starts them again for a
        larger one.
    name : str
        What `info` and `explain` call it.
    """

    def __init__(
        self, parallel: int, thread_num: int, threads: Callable[[], int], name: str
    ) -> None:
        self._threads, self.name = threads, name
        self._starter = int(_starter(parallel, thread_num).ctypes.data)
        self._launch = python_code(".runtime.compiled.region:LAUNCH")

    @property
    def starter(self) -> int:
        """The address of the words by which compiled code starts a region. OpenMP keeps numbers of
        threads for each thread, and to ask for that of the library tells it to a new thread.
        """
        self._threads()
        return self._starter

    @property
    def helpers(self) -> int:
        """How many threads may help a caller."""
        return self._threads() - 1

    def run(self, entry: int, blob: int, threads: int) -> None:
        """Run an entry on up to `threads` threads; return when all items of its blob are done."""
        self._launch(self.starter, entry, blob, threads)


@functools.cache  # runs under way read it when the team is no longer in use
def _starter(parallel: int, thread_num: int) -> Any:
    words = np.zeros(4, np.int64)
    region = code(".runtime.compiled.region:PARALLEL_REGION").address()
    words[[PARALLEL, REGION, THREAD_NUM]] = parallel, region, thread_num
    return words
