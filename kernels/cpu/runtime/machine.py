"""The machine that code is compiled for: from LLVM's assembly to an object, and into memory."""

import functools
from typing import Any

import llvmlite.binding as llvm
from numba.core import config
from numba.core.registry import cpu_target

# How large a function may be, in LLVM's measure, to be inlined in several places. LLVM's own limit
# is 225. First calls take 12 % less time at 100, and all others as much (EPYC 9004, 2026-11).
INLINING = 100


def description() -> tuple[str, str, str]:
    """The triple, the CPU's name and its features, as Numba's settings have them."""
    found: tuple[str, str, str] = cpu_target.target_context.codegen().magic_tuple()
    return found


class Machine:
    """A target of LLVM's, and the code that was loaded into this process.

    Parameters
    ----------
    triple, cpu, features : str
        In LLVM's words.
    """

    def __init__(self, triple: str, cpu: str, features: str) -> None:
        self.triple, self.description = triple, (triple, cpu, features)
        x86 = triple.startswith(("x86", "i386", "i686"))
        self._target = llvm.Target.from_triple(triple).create_target_machine(
            cpu=cpu,
            features=features,
            opt=int(config.OPT),
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
        options.speed_level = int(config.OPT)
        options.inlining_threshold = INLINING
        options.loop_vectorization = bool(config.LOOP_VECTORIZE)
        options.slp_vectorization = bool(config.SLP_VECTORIZE)
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
def machine(*description: str) -> Machine:
    """The machine of this description."""
    return Machine(*description)
