"""Compile a kernel for a target, with or without a GPU: Numba -> LTO-IR -> nvJitLink -> cubin.

Linking at link time (LTO) is not an optimisation here: without it ptxas compiles relocatable code
and drops setmaxnreg, silently but for a C7504 message in the log.
"""

import contextlib
import re
from typing import NamedTuple

from implicit_conv.kernels.gpu import ptx


class Kernel(NamedTuple):
    """A linked kernel: the image, its entry, and what the linker said."""

    cubin: bytes
    entry: str
    log: str

    @property
    def registers(self):
        """Registers of a thread at entry."""
        return int(re.search(r"Used (\d+) registers", self.log)[1])

    @property
    def spills(self):
        """Bytes of spill stores and loads of a thread."""
        counts = re.findall(r"(\d+) bytes spill (?:stores|loads)", self.log)
        return sum(map(int, counts))

    @property
    def stack(self):
        """Bytes of a thread's stack: what was put there without a spill, such as a blob's copy."""
        return int(re.search(r"(\d+) bytes stack frame", self.log)[1])

    @property
    def complaints(self):
        """Lines of the log that report serialised wgmma, ignored setmaxnreg or a register limit."""
        return [line for line in self.log.splitlines() if re.search(r"C7[56]\d\d", line)]


_compiled_for: list[tuple] = []  # the target that compiled device functions are for


@contextlib.contextmanager
def offline(cc):
    """Let device functions be typed for `cc`: Numba asks the current device, if there is one or
    not.
    """
    from numba.cuda import compiler, dispatcher

    if _compiled_for != [cc]:
        ptx.forget_compiled()
        _compiled_for[:] = [cc]

    class Device:
        compute_capability = cc

    modules = (compiler, dispatcher)
    before = [module.get_current_device for module in modules]
    for module in modules:
        module.get_current_device = lambda: Device
    try:
        yield
    finally:
        for module, function in zip(modules, before, strict=True):
            module.get_current_device = function


def link(ltoir, cc):
    """(cubin, log) of LTO-IR, by nvJitLink."""
    from cuda.bindings import nvjitlink

    options = [f"-arch={ptx.target_name(cc)}", "-lto", "-O3", "-Xptxas=-v"]
    handle = nvjitlink.create(len(options), options)
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, ltoir, len(ltoir), "fprop")
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    finally:
        nvjitlink.destroy(handle)
    return bytes(cubin), log.decode().strip("\0")


def compile_kernel(function, signature, cc, threads):
    """`function` for compute capability `cc` = (major, minor, suffix) and blocks of `threads`."""
    from numba import cuda
    from numba.cuda.core.compiler_lock import global_compiler_lock

    # Nobody else compiles while Numba takes `cc` for the device's; this thread may hold the lock.
    with global_compiler_lock, offline(cc):
        ltoir, _ = cuda.compile(
            function,
            signature,
            cc=cc,
            output="ltoir",
            device=False,
            abi="numba",
            launch_bounds=(threads, 1),
        )
    cubin, log = link(ltoir, cc)
    return Kernel(cubin, re.search(rb"\.text\.([\w$]+)", cubin)[1].decode(), log)
