"""Compile a kernel for a target, with or without a GPU: Numba -> LTO-IR -> nvJitLink -> cubin.

Link-time optimisation (LTO) is not an optimisation here: without it ptxas compiles relocatable code
and drops setmaxnreg, and only a C7504 message in the log says so.
"""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from implicit_conv.kernels.gpu.intrinsic import cuda_module, need_numba_cuda
from implicit_conv.kernels.gpu.ptx import choose_target
from implicit_conv.kernels.gpu.targets import target_name

Capability: TypeAlias = "tuple[int, int, str]"


class Kernel(NamedTuple):
    """A linked kernel: the image, its entry, and the linker's log."""

    cubin: bytes
    entry: str
    log: str

    @property
    def registers(self) -> int:
        """Registers of a thread at entry."""
        return self._counts(r"Used (\d+) registers")[0]

    @property
    def spills(self) -> int:
        """Bytes of spill stores and loads of a thread."""
        return sum(self._counts(r"(\d+) bytes spill (?:stores|loads)"))

    @property
    def stack(self) -> int:
        """Bytes of a thread's stack, for variables that are no spills, such as a copied blob."""
        return self._counts(r"(\d+) bytes stack frame")[0]

    @property
    def complaints(self) -> list[str]:
        """Lines of the log that report serialised wgmma, ignored setmaxnreg or a register limit."""
        return [line for line in self.log.splitlines() if re.search(r"C7[56]\d\d", line)]

    def _counts(self, pattern: str) -> list[int]:
        return [int(count) for count in re.findall(pattern, self.log)]


@contextlib.contextmanager
def offline(cc: Capability) -> Iterator[None]:
    """Let Numba type device functions for `cc`.

    Numba asks the current device for its capability, even where there is none.
    """
    choose_target(cc)

    class Device:
        compute_capability = cc

    modules = cuda_module("compiler"), cuda_module("dispatcher")
    before = [module.get_current_device for module in modules]
    for module in modules:
        module.get_current_device = lambda: Device
    try:
        yield
    finally:
        for module, function in zip(modules, before, strict=True):
            module.get_current_device = function


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """No search for garbage: Numba makes millions of objects, nearly all of which live on.

    The searches were a sixth of the time that it takes to compile.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _linked(ltoir: bytes, cc: Capability, *options: str) -> Iterator[tuple[Any, Any]]:
    """(nvjitlink, the handle of a finished link of LTO-IR)."""
    from cuda.bindings import nvjitlink

    options = (f"-arch={target_name(cc)}", "-lto", "-O3", *options)
    handle = nvjitlink.create(len(options), list(options))
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, ltoir, len(ltoir), "fprop")
        nvjitlink.complete(handle)
        yield nvjitlink, handle
    finally:
        nvjitlink.destroy(handle)


def link(ltoir: bytes, cc: Capability) -> tuple[bytes, str]:
    """(cubin, log) of LTO-IR, by nvJitLink."""
    with _linked(ltoir, cc, "-Xptxas=-v") as (nvjitlink, handle):
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    return bytes(cubin), log.decode().strip("\0")


def compile_ltoir(
    function: Callable[..., Any],
    signature: Any,
    cc: Capability,
    threads: int,
    resident: int = 1,
    lineinfo: bool = False,
) -> bytes:
    """The LTO-IR of `function` for compute capability `cc` and blocks of `threads`.

    A thread may have as many registers as allow `resident` blocks on a multiprocessor.
    """
    numba_cuda, lock = need_numba_cuda(), cuda_module("core.compiler_lock").global_compiler_lock
    # Other threads must not compile while Numba takes `cc` for the device's capability. The lock is
    # reentrant: this thread may hold it already.
    with lock, _uncollected(), offline(cc):
        ltoir, _ = numba_cuda.compile(
            function,
            signature,
            cc=cc,
            output="ltoir",
            device=False,
            abi="numba",
            launch_bounds=(threads, resident),
            lineinfo=lineinfo,
        )
    made: bytes = ltoir
    return made


def compile_kernel(
    function: Callable[..., Any], signature: Any, cc: Capability, threads: int, resident: int = 1
) -> Kernel:
    """`function` compiled and linked, as `compile_ltoir` has it."""
    cubin, log = link(compile_ltoir(function, signature, cc, threads, resident), cc)
    (entry, *_) = re.findall(rb"\.text\.([\w$]+)", cubin)
    return Kernel(cubin, entry.decode(), log)


def compile_ptx(
    function: Callable[..., Any],
    signature: Any,
    cc: Capability,
    threads: int,
    resident: int = 1,
    lineinfo: bool = False,
) -> str:
    """The PTX that nvJitLink would hand to ptxas; `lineinfo` adds the lines of Python sources."""
    ltoir = compile_ltoir(function, signature, cc, threads, resident, lineinfo)
    with _linked(ltoir, cc, "-ptx", *(["-lineinfo"] if lineinfo else [])) as (nvjitlink, handle):
        text = bytearray(nvjitlink.get_linked_ptx_size(handle))
        nvjitlink.get_linked_ptx(handle, text)
    return text.decode().strip("\0")
