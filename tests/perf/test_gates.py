"""Gates count what executes, equal the committed counts, and change with a planted load."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from implicit_conv.kernels.cpu.runtime.pool import aligned_bytes
from implicit_conv.testing import Case
from perf import assembly, gates, neon
from perf.__main__ import main
from perf.layers import layers
from perf.record import ROOT

LOADS = "for b in range(g.phases_w):\n"
TWICE = LOADS.replace("g.phases_w):", "2 * g.phases_w):") + 24 * " " + "b //= 2\n"


def test_differences_name_each_count_that_changed():
    expected = {"compiler": "1", "engine": {"a": {"loads": 3, "gone": 1}}, "modules": ["x"]}
    measured = {"compiler": "1", "engine": {"a": {"loads": 4, "new": 2}}, "modules": ["x"]}
    assert gates.differences(expected, measured) == [
        ("engine / a / loads", 3, 4),
        ("engine / a / new", None, 2),
        ("engine / a / gone", 1, None),
    ]


def test_instructions_are_compared_for_their_own_compiler_only():
    expected = {"compiler": "1", "instructions": {"avx2": {"fma": 48}}}
    measured = {"compiler": "2", "instructions": {"avx2": {"fma": 47}}}
    assert gates.differences(expected, measured) == []
    assert len(gates.differences(expected, {**measured, "compiler": "1"})) == 1


def test_gpu_kernels_are_compared_where_their_compilers_are():
    """An update on a machine without compilers keeps the counts that it cannot make."""
    expected = {"compiler": "1", "gpu compiler": "a", "gpu": {"fma sm_80": {"registers": 143}}}
    without = {"compiler": "1"}
    assert gates.differences(expected, without) == []
    assert gates._kept(expected, without) == {k: expected[k] for k in ("gpu compiler", "gpu")}
    spilled = {**expected, "gpu": {"fma sm_80": {"registers": 144}}}
    assert gates.differences(expected, spilled) == [("gpu / fma sm_80 / registers", 143, 144)]
    assert gates.differences(expected, {**spilled, "gpu compiler": "b"}) == []


def test_flops_are_counted_in_the_microkernels():
    """A pointwise layer of whole tiles issues only useful FLOPs; one more filter adds a vector."""
    from perf.counting import count

    def counted(filters):
        case = Case(
            C=64, K=filters, size=(8, 7), kernel=(1, 1), layout="NHWC", weight_layout="RSCK"
        )
        plan = gates.plan_for(case, gates.ARCHES["avx2"])
        return count(plan, *case.arrange(*case.inputs(0)))

    whole, more = counted(32), counted(33)
    assert whole["issued_flops"] == whole["useful_flops"] == 2 * 56 * 64 * 32
    assert more["issued_flops"] == 2 * 56 * 64 * (32 + 8)


def test_counts_do_not_depend_on_where_x_begins():
    """Depthwise in place aligns vectors of an x that begins late at the cost of one more."""
    from perf.counting import count

    case = layers("mobilenet", "NHWC")["3x3 dw 144 @56"]
    plan = gates.plan_for(case, gates.ARCHES["avx2"])
    x, w = case.arrange(*case.inputs(0))
    found = []
    for late in (0, 16):
        memory = aligned_bytes(x.nbytes + 64)[late:][: x.nbytes]
        moved = memory.view(x.dtype).reshape(x.shape)
        moved[...] = x
        found.append(count(plan, moved, w))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", assembly.TARGETS)
def test_the_inner_loop_has_an_fma_for_each_sum_and_no_spill(name):
    target = assembly.TARGETS[name]
    tile = assembly.largest_tile(target)
    counts = assembly.instruction_counts(target)
    assert counts["fma"] == 4 * tile.pixels * tile.vectors  # unrolled four times
    assert counts["spill"] == 0
    assert counts["branch"] == 1


def test_spills_and_other_classes_are_told_apart():
    target = assembly.TARGETS["avx512"]
    lines = {
        "vfmadd231ps %zmm1, %zmm2, %zmm3": "fma",
        "vmovups %zmm1, 64(%rsp)": "spill",
        "vbroadcastss 4(%rax), %zmm2": "broadcast",
        "vmovups (%rsi), %zmm1": "vector move",
        "prefetcht0 2048(%rsi)": "prefetch",
        "jl .LBB0_4": "branch",
        "addq $16, %rax": "integer",
    }
    assert {line: assembly.instruction_class(line, target) for line in lines} == lines


@pytest.mark.slow
def test_counts_are_the_committed_ones():
    changes = gates.differences(json.loads(gates.EXPECTED.read_text()), gates.measure())
    assert changes == [], "if this is meant: python -m perf gates --update"


ONE_LAYER = """
import json
from perf import gates
gates.LAYERS = gates.LAYERS[2:3]
print(json.dumps(gates.engine_counts("avx2")))
"""


@pytest.mark.slow
def test_a_planted_load_changes_the_counts(tmp_path):
    """Execute every activation load twice, which changes no result."""
    for name in ("implicit_conv", "kernels", "perf"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    source = tmp_path / "kernels" / "cpu" / "tile" / "compiled" / "load.py"
    text = source.read_text()
    assert text.count(LOADS) == 1
    source.write_text(text.replace(LOADS, TWICE))
    counted = subprocess.run(
        [sys.executable, "-c", ONE_LAYER],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": "", "IMPLICIT_CONV_CACHE_DIR": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    measured = json.loads(counted.stdout)
    del measured["kernels compiled"]
    expected = json.loads(gates.EXPECTED.read_text())["engine"]["avx2"]
    changes = gates.differences({name: expected[name] for name in measured}, measured)
    assert {name.split(" / ")[-1] for name, _, _ in changes} == {"loads_issued", "bytes_loaded"}


@pytest.mark.parametrize("loads", [3, 6])
def test_the_exit_status_tells_whether_a_count_changed(loads, monkeypatch, tmp_path, capsys):
    expected = tmp_path / "gates.json"
    expected.write_text(json.dumps({"engine": {"a": {"loads_issued": 3}}}))
    monkeypatch.setattr(gates, "EXPECTED", expected)
    monkeypatch.setattr(gates, "measure", lambda: {"engine": {"a": {"loads_issued": loads}}})
    assert main(["gates"]) == (loads != 3)
    assert ("loads_issued" in capsys.readouterr().out) == (loads != 3)


FMAS = [f"fmla v{i}.4s, v30.4s, v31.s[0]" for i in range(16)]


@pytest.mark.skipif(neon.tool() is None, reason="llvm-mca of LLVM 17 or later is not installed")
@pytest.mark.parametrize("core", neon.CORES)
def test_independent_fmas_reach_the_peak_and_broadcasts_take_their_place(core):
    path = neon.tool()
    assert neon.share_of_peak(path, FMAS, core) > 0.9
    assert neon.share_of_peak(path, [FMAS[0]], core) < 0.6  # each waits for the one before
    slower = [*FMAS, *(f"ld1r {{ v{i}.4s }}, [x{i}]" for i in range(16, 24))]
    assert neon.share_of_peak(path, slower, core) < neon.share_of_peak(path, FMAS, core) - 0.02


def test_without_llvm_mca_its_section_is_not_compared(monkeypatch):
    monkeypatch.setattr(neon.shutil, "which", lambda name: None)
    assert neon.measure() == {}
    expected = {"llvm-mca": "19.1", "share of peak": {"gemm float32": {"neoverse-n1": 1.0}}}
    assert gates.differences(expected, {}) == []
    slower = {**expected, "share of peak": {"gemm float32": {"neoverse-n1": 0.9}}}
    changed = [("share of peak / gemm float32 / neoverse-n1", 1.0, 0.9)]
    assert gates.differences(expected, slower) == changed
