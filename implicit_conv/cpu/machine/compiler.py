"""The compiler: whether code can be compiled, for which machine, and what that code may use.

Settings of Numba (NUMBA_CPU_NAME, NUMBA_CPU_FEATURES, NUMBA_ENABLE_AVX) choose the machine, and
LLVM derives its features from a CPU name and a list in which one feature may switch others on or
off: "+fma" implies AVX. Such rules change with LLVM, so LLVM itself is asked: it inlines a function
only into one that has all features which the function needs.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import NamedTuple

from implicit_conv.cpu.machine.probe import System
from implicit_conv.errors import PlanError
from implicit_conv.kernels.sources import NJIT, TRANSLATOR
from implicit_conv.process.preparation import first

# Prefixes of the features that LLVM uses wherever it finds a use; others need an intrinsic.
USED_UNASKED = tuple(
    "adx avx bmi ccmp cf egpr f16c fma gfni lzcnt movbe ndd nf popcnt ppx push2pop2 sse ssse tbm "
    "xop zu".split()
)
# A function that needs a feature more than the machine's, and one of the machine that calls it. The
# store keeps the call.
PROBE = """
define internal void @"{name}"(ptr %p) "target-cpu"="{cpu}" "target-features"="{features}" {{
  store volatile i8 0, ptr %p
  ret void
}}
define void @"calls {name}"(ptr %p) {{
  call void @"{name}"(ptr %p)
  ret void
}}
"""


class Target(NamedTuple):
    """A machine that LLVM compiles for."""

    triple: str
    cpu: str
    features: str  # "+a,-b,...": changes to the features of `cpu`, applied in this order

    @property
    def is_x86(self) -> bool:
        """Whether it is an x86 machine."""
        return self.triple.startswith(("x86", "i386", "i486", "i586", "i686"))

    def supported(self, names: Collection[str]) -> frozenset[str]:
        """Those of the features `names` that compiled code may use.

        LLVM takes 1 ms for each list of features (Xeon, 2026-11), so those of this CPU are one.
        """
        there = host_features()
        likely = [name for name in names if there.get(name)]
        together = ",+".join(likely)
        found = self._inlined([*filter(None, [together]), *(n for n in names if n not in likely)])
        if together in found:
            return (found - {together}).union(likely)
        return self._inlined(names) if likely else found

    def _inlined(self, names: Collection[str]) -> frozenset[str]:
        """Those of `names`, each a feature or several, which need no more than the machine has."""
        import llvmlite.binding as llvm

        machine = llvm.Target.from_triple(self.triple).create_target_machine(
            cpu=self.cpu, features=self.features
        )
        probes = [
            PROBE.format(name=name, cpu=self.cpu, features=f"{self.features},+{name}".strip(","))
            for name in names
        ]
        module = llvm.parse_assembly("".join(probes))
        module.triple = self.triple
        builder = llvm.create_pass_builder(
            machine, llvm.create_pipeline_tuning_options(speed_level=1)
        )
        builder.getModulePassManager().run(module, builder)
        called = {function.name for function in module.functions}  # inlined ones are gone
        return frozenset(name for name in names if name not in called)


def compiled_target() -> Target:
    """The machine that this process compiles for."""
    from implicit_conv.kernels.cpu.runtime.machine import settings

    return Target(*settings()[:3])


def host_features() -> dict[str, bool]:
    """The features of this CPU and its system, by LLVM's names; empty if LLVM cannot tell."""
    import llvmlite.binding as llvm

    try:
        return dict(llvm.get_host_cpu_features())
    except RuntimeError:
        return {}


def check_target(target: Target) -> None:
    """Refuse settings that ask for features which this CPU lacks.

    Raises
    ------
    PlanError
        The message names the setting and the features: their code would end the process.
    """
    from implicit_conv.kernels.cpu.runtime.machine import asked

    asked_name, asked_features = asked()
    if asked_features is None:  # the features are those that LLVM finds
        return
    absent = [name for name, there in host_features().items() if not there]
    used = target.supported([name for name in absent if name.startswith(USED_UNASKED)])
    if not used:
        return
    listed = target._replace(cpu="generic").supported(used)
    named = "the CPU name" if asked_name is None else "NUMBA_CPU_NAME"
    causes = {
        f"NUMBA_CPU_FEATURES={target.features!r} asks for": listed,
        f"{named} {target.cpu!r} implies": used - listed,
    }
    found = [f"{cause} {', '.join(sorted(names))}" for cause, names in causes.items() if names]
    without = ",".join(filter(None, (target.features, *(f"-{name}" for name in sorted(used)))))
    raise PlanError(
        f"{' and '.join(found)}, which this CPU does not have; unset NUMBA_CPU_FEATURES, or set it "
        f"to {without!r}"
    )


_system = functools.cache(System)

WITHOUT_KERNELS = (
    "Without kernels only algorithm='gemm_im2col' works, for float32 and float64 with no "
    "activation, a relu or a clamp"
)


def check_enabled(compiler: str = TRANSLATOR) -> None:
    """Refuse to go on where no kernel can be compiled or loaded.

    Raises
    ------
    PlanError
        Numba shall compile, but NUMBA_DISABLE_JIT is set; or memory may not be made executable:
        the code that LLVM loads would end the process.
    """
    if compiler == NJIT:
        first("ask Numba")
        from numba import config

        if config.DISABLE_JIT:
            raise PlanError(
                "compiler='njit' needs Numba's compiler, but NUMBA_DISABLE_JIT is set; unset it, "
                "set numba.config.DISABLE_JIT = 0, or use compiler='translator'"
            )
    if not _system().executable():
        raise PlanError(
            "this process may not make memory executable (mprotect refuses PROT_EXEC), so no "
            "compiled kernel can be loaded; allow it where that is forbidden: remove systemd's "
            "MemoryDenyWriteExecute=yes, allow SELinux's execmem (setsebool deny_execmem off), do "
            "without prctl(PR_SET_MDWE), or let the seccomp filter of the sandbox pass mprotect. "
            f"{WITHOUT_KERNELS}"
        )
