"""oneDNN by its C interface: x and y are plain arrays in the layout of the case, and the filter has
whatever order the library chooses, into which it is brought before the clock starts.

Two packages have the library, each as a rival: the newest, whose CPU runtime is SYCL, which takes
some 20 us to start a primitive, and the last with OpenMP, which takes none.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, byref, c_int, c_int64, c_size_t, c_uint, c_void_p
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from implicit_conv.testing import Array, Case, to_nchw
from implicit_conv.tools.rivals import Function

PACKAGES = {"onednn": "onednn", "onednn-openmp": "onednn-cpu-gomp"}  # rival: its package
# Values of dnnl_types.h, version 3.
CPU, IN_ORDER, F32, ANY = 1, 1, 3, 1
INFERENCE, AUTO, QUERY_WEIGHTS = 96, 3, 131
SOURCE, DESTINATION, WEIGHTS = 1, 17, 33  # arguments of primitives


class _Version(Structure):
    _fields_ = (
        ("major", c_int),
        ("minor", c_int),
        ("patch", c_int),
        ("hash", ctypes.c_char_p),
        ("cpu_runtime", c_uint),
        ("gpu_runtime", c_uint),
    )


class _Argument(Structure):
    _fields_ = (("role", c_int), ("memory", c_void_p))


def library(name: str) -> Path | None:
    """The shared library of a rival of PACKAGES; None if the package is not installed.

    Both packages install equal short names, so that only the longest tells them apart.
    """
    try:
        files = metadata.files(PACKAGES[name]) or []
    except metadata.PackageNotFoundError:
        return None
    found = [file for file in files if file.name.startswith("libdnnl.so")]
    return Path(str(max(found, key=lambda file: len(file.name)).locate())).resolve()


def environment(name: str, threads: int) -> dict[str, str]:
    """Variables of a process that loads the library of a rival: where the libraries are that it
    needs, and the CPU as a device of SYCL with so many threads.
    """
    path = library(name)
    assert path is not None
    return {
        "LD_LIBRARY_PATH": str(path.parent),
        "OCL_ICD_FILENAMES": str(path.parent / "libintelocl.so"),
        "DPCPP_CPU_NUM_CUS": str(threads),
    }


def keep_to(threads: int) -> None:
    """Let this process run on so many CPUs: SYCL starts a thread for each one that it may use,
    whatever the variables say. Call it before the library is loaded.
    """
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])


class Library:
    """The library with a CPU engine and a stream. Objects live as long as the process, in which a
    rival is loaded once.
    """

    def __init__(self, name: str) -> None:
        self._library = ctypes.CDLL(str(library(name)))
        self._library.dnnl_version.restype = POINTER(_Version)
        self._library.dnnl_primitive_desc_query_md.restype = c_void_p
        found = self._library.dnnl_version().contents
        self.version = f"{found.major}.{found.minor}.{found.patch}"
        self.engine = self.new("engine_create", CPU, c_size_t(0))
        self.stream = self.new("stream_create", self.engine, IN_ORDER)

    def new(self, function: str, *arguments: Any) -> c_void_p:
        """The object that a function such as "engine_create" makes.

        Raises
        ------
        ValueError
            It makes none.
        """
        made = c_void_p()
        self._call(function, byref(made), *arguments)
        return made

    def _call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, f"dnnl_{function}")(*arguments)
        if status:
            raise ValueError(f"dnnl_{function} of oneDNN {self.version} returns {status}")

    def form(self, array: Array) -> c_void_p:
        """The memory descriptor of an array as it is."""
        strides = [stride // array.itemsize for stride in array.strides]
        sizes = array.ndim, _integers(array.shape)
        return self.new("memory_desc_create_with_strides", *sizes, F32, _integers(strides))

    def memory(self, form: c_void_p, array: Array | None = None) -> c_void_p:
        """Memory with the values of `array`, or of the library's own."""
        where = c_void_p(-1 if array is None else array.ctypes.data)
        return self.new("memory_create", form, self.engine, where)

    def run(self, primitive: c_void_p, arguments: Any) -> None:
        """Execute a primitive, and wait."""
        self._library.dnnl_primitive_execute(primitive, self.stream, len(arguments), arguments)
        self._library.dnnl_stream_wait(self.stream)

    def packed(self, w: Array, wanted: c_void_p) -> c_void_p:
        """The filter in the order that a primitive wants."""
        form, result = self.form(w), self.memory(wanted)
        way = form, self.engine, wanted, self.engine, None
        reorder = self.new("primitive_create", self.new("reorder_primitive_desc_create", *way))
        self.run(reorder, _arguments({SOURCE: self.memory(form, w), DESTINATION: result}))
        return result

    def convolution(self, case: Case, x: Array, w: Array) -> Function:
        """The convolution of one case; its result has channels second, and is overwritten by the
        next call.
        """
        source, rank = to_nchw(x, case.layout), len(case.size)
        y = to_nchw(np.empty(case.problem.output_shape, np.float32), case.layout)
        if case.groups > 1:
            w = w.reshape(case.groups, case.K, *w.shape[1:])
        ends = self.form(source), self.form(y)
        order = self.new("memory_desc_create_with_tag", w.ndim, _integers(w.shape), F32, ANY)
        lows, highs = zip(*case.padding, strict=True)
        steps = [case.stride, [step - 1 for step in case.dilation], lows, highs]
        assert all(len(step) == rank for step in steps)
        chosen = self.new(
            "convolution_forward_primitive_desc_create",
            *(self.engine, INFERENCE, AUTO, ends[0], order, None, ends[1]),
            *map(_integers, steps),
            None,
        )
        wanted = c_void_p(self._library.dnnl_primitive_desc_query_md(chosen, QUERY_WEIGHTS, 0))
        convolve = self.new("primitive_create", chosen)
        arrays = {
            SOURCE: self.memory(ends[0], source),
            WEIGHTS: self.packed(w, wanted),
            DESTINATION: self.memory(ends[1], y),
        }
        arguments = _arguments(arrays)

        def call(held: Any = source) -> Array:  # the library knows only the address of x
            self.run(convolve, arguments)
            return y

        return call


def _integers(values: Any) -> Any:
    return (c_int64 * len(values))(*values)


def _arguments(arrays: dict[int, c_void_p]) -> Any:
    found = [_Argument(role, memory) for role, memory in arrays.items()]
    return (_Argument * len(found))(*found)
