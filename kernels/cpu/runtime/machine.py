"""The machine that code is compiled for: from LLVM's assembly to an object, and into memory."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm

from implicit_conv.process.preparation import checkpoint, first

# How large a function may be, in LLVM's measure, to be inlined in several places. LLVM's own limit
# is 225. First calls take 9 % less time at 25 than at 100, and all others as much (Xeon, 2026-11).
INLINING = 25
# The level of LLVM's passes at most. What it does at 3 alone, such as a copy of a loop for each
# value of a condition, made no call faster and took a quarter of its time (EPYC 7003, 2026-11); at
# 1 a 9x9 layer of 3 channels took a tenth more.
LEVEL = 2

# Numba knows these settings from the environment, or from a file. What it makes of them is asked of
# Numba, which takes 0.2 s to import; all other processes have its defaults.
VARIABLES = {"NUMBA_ENABLE_AVX", "NUMBA_OPT", "NUMBA_LOOP_VECTORIZE", "NUMBA_SLP_VECTORIZE"}
FILE = ".numba_config.yaml"
# CPUs with AVX for which Numba uses none.
WITHOUT_AVX = ("corei7-avx", "core-avx-i", "sandybridge", "ivybridge")


class Settings(NamedTuple):
    """A machine in LLVM's words, and what LLVM does for it."""

    triple: str
    cpu: str
    features: str
    opt: int = 3
    loop_vectorize: bool = True
    slp_vectorize: bool = False


def asked() -> tuple[str | None, str | None]:
    """The CPU's name and features that settings of Numba's ask for; None where they do not."""
    if _ask_numba():
        config = _config()
        return config.CPU_NAME, config.CPU_FEATURES
    name, features = os.environ.get("NUMBA_CPU_NAME"), os.environ.get("NUMBA_CPU_FEATURES")
    if features is None and name is not None and name.lower() == "generic":
        features = ""
    return name, features


def settings() -> Settings:
    """The machine and the options that settings of Numba's ask for, or this CPU."""
    if not _ask_numba():
        return _described(*asked())
    config = _config()
    options = int(config.OPT), bool(config.LOOP_VECTORIZE), bool(config.SLP_VECTORIZE)
    return _described(*asked(), config.ENABLE_AVX, *options)


@functools.cache
def _described(
    name: str | None, features: str | None, avx: object = None, *options: Any
) -> Settings:
    """The settings for a name and features that are asked for, and for Numba's other settings, if
    it has been asked for them.
    """
    checkpoint()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    host, its_features = _host()
    if features is None and options:
        from implicit_conv.kernels.cpu.emit.numbas import get_host_cpu_features

        its_features = get_host_cpu_features()  # without AVX where `avx` says so
    return Settings(
        llvm.get_process_triple(),
        host if name is None else name,
        its_features if features is None else features,
        *options,
    )


def _config() -> Any:
    """Numba's settings."""
    first("ask Numba")
    from implicit_conv.kernels.cpu.emit.numbas import config

    return config


def _ask_numba() -> bool:
    """Whether Numba's settings may not be the defaults. Attributes of numba.config count in a
    process that has imported Numba.
    """
    if "numba" in sys.modules:
        return True
    asks = not VARIABLES.isdisjoint(os.environ) or Path(FILE).exists()
    if asks or (os.environ.get("NUMBA_CPU_NAME") or _host()[0]) in WITHOUT_AVX:
        return True
    return False


@functools.cache
def _host() -> tuple[str, str]:
    """The name and the features of this CPU; no features where LLVM cannot tell."""
    checkpoint()
    try:
        return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    except RuntimeError:
        return llvm.get_host_cpu_name(), ""


class Machine:
    """A target of LLVM's, and the code that was loaded into this process.

    Parameters
    ----------
    *settings
        The fields of `Settings`.
    """

    def __init__(self, *settings: Any) -> None:
        self.settings = Settings(*settings)
        triple, cpu, features, opt, *_ = self.settings
        x86 = triple.startswith(("x86", "i386", "i686"))
        self._target = llvm.Target.from_triple(triple).create_target_machine(
            cpu=cpu,
            features=features,
            opt=opt,
            reloc="static" if x86 else "default",
            codemodel="jitdefault",
            jit=True,
        )
        self._layout = str(self._target.target_data)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), self._target)
        self._objects: list[Any] = []  # that code was loaded from

    def compile(self, assembly: str) -> bytes:
        """The optimised object of a module."""
        module = llvm.parse_assembly(assembly)
        module.data_layout = self._layout
        module.verify()
        options = llvm.create_pipeline_tuning_options()
        options.speed_level = min(LEVEL, self.settings.opt)
        options.inlining_threshold = INLINING
        options.loop_vectorization = self.settings.loop_vectorize
        options.slp_vectorization = self.settings.slp_vectorize
        passes = llvm.create_pass_builder(self._target, options)
        passes.getModulePassManager().run(module, passes)
        code: bytes = self._target.emit_object(module)
        return code

    def load(self, code: bytes, name: str) -> int:
        """The address of the function `name` of an object.

        Raises
        ------
        ValueError
            The object has no such function. (LLVM would end the process.)
        RuntimeError
            It is no object.
        """
        if f"{name}\0".encode() not in code:
            raise ValueError(f"no function {name}")
        loaded = llvm.ObjectFileRef.from_data(code)
        self._engine.add_object_file(loaded)
        self._objects.append(loaded)
        self._engine.finalize_object()
        return int(self._engine.get_function_address(name))  # the newest of this name


@functools.cache
def machine(*settings: Any) -> Machine:
    """The machine of these settings."""
    return Machine(*settings)
