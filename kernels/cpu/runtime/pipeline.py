"""How Numba compiles the engine's functions: only entries become machine code, each as a whole.

Numba's own pipeline optimises and loads every function by itself, and again in each of its callers.
Here an inner function is only typed and lowered. An entry links all functions that it reaches, each
once, and is optimised once. Passes for arrays, closures and Python objects, which kernels do not
use, are left out. This halves the time of first calls with an empty cache.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

from numba.core import typed_passes, untyped_passes
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager


class _NoEnvironments:
    """Takes the place of a code generator that gives functions their Python environments."""

    def set_env(self, name: str, environment: object) -> None:
        """Kernels use no Python objects."""


class PartLibrary(JITCodeLibrary):  # type: ignore[misc, unused-ignore]
    """An inner function, which becomes part of entries and never gets an address of its own."""

    codegen = _NoEnvironments()

    def _optimize_functions(self, module: Any) -> None:
        """Leave it to the entry."""
        module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        """Take no more code; the entry optimises it."""
        self._raise_if_finalized()
        self._finalized = True

    def own_module(self) -> Any:
        """The module of this function alone."""
        return super()._get_module_for_linking()

    def _get_module_for_linking(self) -> Any:
        """The module of this function and of all that it reaches, for functions of other code."""
        module = self.own_module().clone()
        _link(module, self._linking_libraries)
        return module

    def get_pointer_to_function(self, name: str) -> int:
        """No function is loaded."""
        self._ensure_finalized()
        return 0


class EntryLibrary(JITCodeLibrary):  # type: ignore[misc, unused-ignore]
    """A function that is called by address or from Python, with all inner functions it reaches."""

    def _optimize_functions(self, module: Any) -> None:
        """Leave it to `_optimize_final_module`."""
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """Optimise once: Numba does it twice, for the reference counts of Python objects."""
        manager, builder = self._codegen._module_pass_manager()
        manager.run(self._final_module, builder)

    def finalize(self) -> None:
        """Link, optimise and load the code."""
        _link(self._final_module, self._linking_libraries)
        self._linking_libraries.clear()
        super().finalize()


def _link(module: Any, libraries: Iterable[JITCodeLibrary]) -> None:
    """Link `libraries` and all that they reach into `module`, callers before callees: LLVM drops
    functions that nothing calls yet.
    """
    found: dict[JITCodeLibrary, None] = {}

    def visit(library: JITCodeLibrary) -> None:
        if library not in found:
            if isinstance(library, PartLibrary):
                for callee in library._linking_libraries:
                    visit(callee)
            found[library] = None

    for library in libraries:
        visit(library)
    for library in reversed(found):
        part = isinstance(library, PartLibrary)
        own = library.own_module() if part else library._get_module_for_linking()
        module.link_in(own, preserve=True)


PASSES = (
    untyped_passes.TranslateByteCode,
    untyped_passes.FixupArgs,
    untyped_passes.IRProcessing,
    untyped_passes.RewriteSemanticConstants,
    untyped_passes.DeadBranchPrune,
    untyped_passes.GenericRewrites,
    untyped_passes.ReconstructSSA,
    typed_passes.NopythonTypeInference,
    typed_passes.PreLowerStripPhis,
    typed_passes.NoPythonSupportedFeatureValidation,
    typed_passes.IRLegalization,
    typed_passes.AnnotateTypes,
    typed_passes.NativeLowering,
    typed_passes.NoPythonBackend,
)


class _Compiler(CompilerBase):  # type: ignore[misc, unused-ignore]
    """Compiles a function into a library of the class `kind`."""

    kind: ClassVar[type[JITCodeLibrary]]

    def define_pipelines(self) -> list[PassManager]:
        """The one list of passes, with a library for the function at hand."""
        state = self.state
        state.library = self.kind(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        manager = PassManager("implicit_conv")
        for step in PASSES:
            manager.add_pass(step, step.name())
        manager.finalize()
        return [manager]


class PartCompiler(_Compiler):
    """Compiles inner functions."""

    kind = PartLibrary


class EntryCompiler(_Compiler):
    """Compiles functions that are called by address or from Python."""

    kind = EntryLibrary
