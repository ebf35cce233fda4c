"""The planner's CPU is the one that Numba compiles for, whatever settings choose it."""

from dataclasses import replace

import pytest
from processes import output_of
from sampling import count, sampled

from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.machine.compiler import compiled_target

x86 = pytest.mark.skipif(not compiled_target().is_x86, reason="names x86 features")
COMPUTE = """
import sys
import numpy as np
import implicit_conv as ic
from implicit_conv.testing import Case
for dtype in sys.argv[1:]:
    case = Case(C=20, K=9, size=(5, 9), dtype=dtype)
    x, w = case.inputs(0, integers=True)
    y = ic.conv2d(x, w).astype(float)
    np.testing.assert_array_equal(y, case.rounded(case.reference(x, w)), dtype)
"""
# The first one ended the process for bfloat16: dot products of 512 bits without AVX-512.
SETTINGS = [
    {"NUMBA_ENABLE_AVX": "0"},
    {},
    {"NUMBA_CPU_NAME": "generic"},
    {"NUMBA_CPU_NAME": "generic", "NUMBA_ENABLE_AVX": "0"},
    {"NUMBA_CPU_NAME": "haswell", "NUMBA_ENABLE_AVX": "0"},
    {"NUMBA_CPU_NAME": "skylake-avx512"},
    {"NUMBA_CPU_NAME": "x86-64-v3"},
    {"NUMBA_CPU_NAME": "znver3"},
    {"NUMBA_CPU_NAME": "znver5"},
    {"NUMBA_CPU_NAME": "sapphirerapids"},
    {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""},
    {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+sse2,+avx"},
    {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+fma"},
    {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+f16c"},
]
AVX512 = [  # they need a CPU with AVX512_BF16
    {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features}
    for features in (
        "+avx512f",
        "+avx512bf16",
        "+avx512bf16,+avx512dq",
        "+avx512bf16,+avx512vl",
        "+avx512bf16,+avx512dq,+avx512vl",
        "+avx512bf16,-avx512f",
        "+avx512f,-avx2",
    )
]
if cpu_arch().rounds_bfloat16:
    SETTINGS += AVX512


@x86
@sampled
@pytest.mark.parametrize("settings", SETTINGS[: count(1, len(SETTINGS))], ids=str)
def test_no_setting_ends_the_process(settings):
    dtypes = ("bfloat16", "float16", "float32", "float64")
    output_of(COMPUTE, *dtypes[: count(1, 4)], **settings)


@x86
@pytest.mark.parametrize(
    ("settings", "bits", "fma"),
    [
        ({"NUMBA_CPU_NAME": "generic"}, 128, False),
        ({"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+sse2"}, 128, False),
    ],
    ids=str,
)
def test_settings_of_numba_choose_the_cpu(settings, bits, fma):
    code = (
        "from implicit_conv.cpu.machine.arch import cpu_arch as a; print(a().vector_bits, a().fma)"
    )
    assert output_of(code, **settings) == f"{bits} {fma}"


@x86
def test_numbas_settings_file_counts(tmp_path):
    pytest.importorskip("yaml")  # without it Numba does not read the file
    (tmp_path / ".numba_config.yaml").write_text("cpu_name: generic\n")
    code = "from implicit_conv.cpu.machine.arch import cpu_arch; print(cpu_arch().vector_bits)"
    assert output_of(code, folder=tmp_path) == "128"


@x86
def test_a_feature_that_this_cpu_lacks_is_refused_before_it_is_used():
    code = """
import implicit_conv as ic
from implicit_conv.cpu.machine.compiler import host_features
try:
    ic.plan_conv2d((1, 2, 5, 5), (3, 2, 3, 3))
except ic.PlanError as error:
    begin, _, end = str(error).partition(" asks for ")
    named, _, rest = end.partition(", which this CPU does not")
    assert begin == "NUMBA_CPU_FEATURES='+xop'" and rest
    assert {"fma4", "xop"} <= set(named.split(", ")) <= {"fma4", "sse4a", "xop"}  # AMD has sse4a
else:
    assert host_features()["fma4"] or host_features()["xop"]
"""
    output_of(code, NUMBA_CPU_FEATURES="+xop")


def test_the_clock_is_not_part_of_a_cpu():
    """Systems report the current clock, so two processes would see two CPUs."""
    arch = cpu_arch()
    assert replace(arch, hertz=1.0) == arch
    assert hash(replace(arch, hertz=1.0)) == hash(arch)
    assert replace(arch, l2_bytes=1) != arch
