"""What compiled code may use is what LLVM says, and settings that cannot work are refused."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from processes import output_of

import implicit_conv as ic
from implicit_conv.cpu.machine import compiler
from implicit_conv.cpu.machine.arch import FEATURES
from implicit_conv.cpu.machine.compiler import Target, check_target, compiled_target, host_features
from implicit_conv.testing import Case

TRIPLE = "x86_64-unknown-linux-gnu"
AVX2 = {"avx", "avx2", "f16c", "fma"}
AVX512 = AVX2 | {"avx512f", "avx512dq", "avx512vl"}
x86 = pytest.mark.skipif(not compiled_target().is_x86, reason="LLVM has no x86 target here")
TARGETS = [
    ("generic", "", set()),
    ("generic", "+fma", {"avx", "fma"}),  # one implies the other
    ("generic", "+f16c", {"avx", "f16c"}),
    ("generic", "+avx512bf16", AVX2 | {"avx512f", "avx512bf16"}),
    ("generic", "+avx512f,-avx2", {"avx", "f16c", "fma"}),  # the order counts
    ("generic", "-avx2,+avx512f", AVX2 | {"avx512f"}),
    ("x86-64-v3", "", AVX2),
    ("haswell", "", AVX2),
    ("haswell", "-avx", set()),  # what implies a feature goes with it
    ("skylake-avx512", "", AVX512),  # LLVM prefers 256-bit vectors here
    ("znver3", "", AVX2),
    ("znver4", "+avx512bf16,-avx512f", AVX2),
    ("znver5", "", AVX512 | {"avx512bf16", "avx512vnni", "avxvnni"}),
    ("sapphirerapids", "", set(FEATURES)),
    ("sierraforest", "", AVX2 | {"avxvnni"}),  # it rounds bfloat16, but in AVX
]
# What this package compiles for, and what Numba does.
SETTINGS = """
{first}
from implicit_conv.kernels.cpu.runtime.machine import settings
triple, name, features, *options = settings()
print(triple, name, sorted(features.split(",")), *options)
from numba.core import config
from numba.core.registry import cpu_target
triple, name, features = cpu_target.target_context.codegen().magic_tuple()
options = int(config.OPT), bool(config.LOOP_VECTORIZE), bool(config.SLP_VECTORIZE)
print(triple, name, sorted(features.split(",")), *options)
"""
ASSEMBLED = """
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
define void @add(ptr %p, ptr %q) {
  %a = load <16 x float>, ptr %p
  %b = load <16 x float>, ptr %q
  %c = call <16 x float> @llvm.fma.v16f32(<16 x float> %a, <16 x float> %b, <16 x float> %b)
  %d = fadd <16 x float> %c, %a
  store <16 x float> %d, ptr %p
  ret void
}
define void @convert(ptr %p, ptr %q) {
  %a = load <16 x half>, ptr %p
  %b = fpext <16 x half> %a to <16 x float>
  store <16 x float> %b, ptr %q
  %c = fptrunc <16 x float> %b to <16 x bfloat>
  store <16 x bfloat> %c, ptr %p
  ret void
}
"""


@x86
@pytest.mark.parametrize(("cpu", "features", "expected"), TARGETS)
def test_features_are_those_that_llvm_derives(cpu, features, expected):
    assert Target(TRIPLE, cpu, features).supported(FEATURES) == expected


@x86
@pytest.mark.parametrize(("cpu", "features", "expected"), TARGETS)
def test_instructions_are_those_of_the_features(cpu, features, expected):
    """An oracle without inlining: what LLVM makes of vectors of 512 bits."""
    import llvmlite.binding as llvm

    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=cpu, features=features)
    text = machine.emit_assembly(llvm.parse_assembly(ASSEMBLED))
    found = {
        "avx512f": "%zmm" in text,
        "avx": "%ymm" in text or "%zmm" in text,
        "fma": "vfmadd" in text,
        "f16c": "vcvtph2ps" in text,
        "avx512bf16": bool(re.search(r"vcvtneps2bf16\s+%zmm", text)),
    }
    if "avx512vl" not in expected:
        expected = expected - {"avx512bf16"}  # LLVM rounds a vector by itself only with both
    assert {name for name, there in found.items() if there} == expected & found.keys()


@x86
@pytest.mark.parametrize(
    ("setting", "cpu", "features", "message"),
    [
        (None, "generic", "+avx2,+fma", r"FEATURES='\+avx2,\+fma' asks for avx2, fma, which"),
        (None, "haswell", "", "^the CPU name 'haswell' implies avx2, fma, which"),
        ("haswell", "haswell", "+avx", "^NUMBA_CPU_NAME 'haswell' implies avx2, fma, which"),
        (None, "haswell", "+fma", "asks for fma and the CPU name 'haswell' implies avx2, which"),
    ],
)
def test_features_that_the_cpu_lacks_are_refused(monkeypatch, setting, cpu, features, message):
    lacking = {**host_features(), "avx2": False, "fma": False}
    monkeypatch.setattr(compiler, "host_features", lambda: lacking)
    monkeypatch.setattr("numba.config.CPU_NAME", setting)
    monkeypatch.setattr("numba.config.CPU_FEATURES", features)
    target = Target(TRIPLE, cpu, features)
    with pytest.raises(ic.PlanError, match=message) as caught:
        check_target(target)
    way_out = re.search(r"or set it to '(.*)'$", str(caught.value)).group(1)
    check_target(target._replace(features=way_out))
    monkeypatch.setattr("numba.config.CPU_FEATURES", None)
    check_target(target)


@x86
def test_features_that_only_intrinsics_use_are_not_refused(monkeypatch):
    """A system may hide some of them; LLVM never uses them without being asked."""
    monkeypatch.setattr(compiler, "host_features", lambda: {"pku": False, "amx-bf16": False})
    monkeypatch.setattr("numba.config.CPU_FEATURES", "")
    check_target(Target(TRIPLE, "sapphirerapids", ""))


def test_a_switch_of_numbas_compiler_changes_nothing():
    """NUMBA_DISABLE_JIT is for functions that Numba compiles."""
    code = """
import sys
import numpy as np
import implicit_conv as ic
if sys.argv[1]:
    import numba
    numba.config.DISABLE_JIT = 1
x, w = np.ones((1, 8, 6, 6), np.float32), np.ones((8, 8, 3, 3), np.float32)
plan = ic.plan_conv2d(x.shape, w.shape, activation="silu")
for y in (ic.conv2d(x, w), plan(x, plan.pack(w))):
    np.testing.assert_allclose(y, 72)
"""
    output_of(code, "", NUMBA_DISABLE_JIT="1")
    output_of(code, "later", NUMBA_DISABLE_JIT="0")


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (float("-inf"), 0.5), (0.0, 1e300)])
def test_numpy_clamps_as_kernels_do(low, high):
    case = Case(C=3, K=5)
    x, w = case.inputs(0)
    x[0, 0, 0, 0] = np.nan
    options = {"activation": ("clamp", low, high)}
    np.testing.assert_allclose(
        ic.conv2d(x, w, algorithm="gemm_im2col", **options), ic.conv2d(x, w, **options), rtol=1e-5
    )


@x86
def test_llvm_need_not_know_the_cpu(monkeypatch):
    import llvmlite.binding as llvm

    def unknown():
        raise RuntimeError("not supported on this platform")

    monkeypatch.setattr(llvm, "get_host_cpu_features", unknown)
    monkeypatch.setattr("numba.config", SimpleNamespace(CPU_FEATURES="+avx2", CPU_NAME=None))
    check_target(Target(TRIPLE, "generic", "+avx2"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        "",
        "NUMBA_CPU_NAME=generic",
        "NUMBA_CPU_NAME=GENERIC",
        "NUMBA_CPU_NAME=haswell",
        "NUMBA_CPU_NAME=host",
        "NUMBA_CPU_NAME=sandybridge",  # for which Numba turns AVX off
        "NUMBA_CPU_FEATURES=+sse2",
        "NUMBA_CPU_FEATURES=",
        "NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx,-avx2",
        "NUMBA_ENABLE_AVX=0",
        "NUMBA_OPT=1 NUMBA_LOOP_VECTORIZE=0 NUMBA_SLP_VECTORIZE=1",
        "cpu_name: haswell",
        "enable_avx: 0",
        "opt: 2",
    ],
)
@pytest.mark.parametrize("first", ["", "import numba"])
def test_settings_are_those_of_numba(asked, first, tmp_path):
    """Before and after the process imports it, by variables or by a file."""
    by_file = ": " in asked
    if by_file:
        (tmp_path / ".numba_config.yaml").write_text(f"{asked}\n")
        pytest.importorskip("yaml", reason="Numba reads its file of settings with PyYAML")
    variables = {} if by_file else dict(setting.split("=") for setting in asked.split())
    ours, numbas = output_of(SETTINGS.format(first=first), folder=tmp_path, **variables).split("\n")
    assert ours == numbas
