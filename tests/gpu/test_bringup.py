"""The bring-up kit: a run is rehearsed on the interpreter, and names the first thing that fails.

The kits of these tests hold PTX that is written here, so they need no compiler; the slow test packs
the kernels themselves.
"""

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ptx_faults import FAULTS

from implicit_conv.kernels.gpu.call import Call
from implicit_conv.testing import Case
from implicit_conv.testing.gpu.problems import stored
from implicit_conv.tma.maps.tiled import TiledMap
from perf.bringup import diagnose, run, steps, watchdog
from perf.bringup import kit as kits
from perf.bringup.emulated import Interpreter
from perf.bringup.gpu import Gpu
from perf.bringup.kit import Image, Kit, Launch, read
from perf.bringup.processes import Ended
from perf.bringup.recipes import Problem
from perf.bringup.sass import tool
from perf.bringup.watchdog import with_watchdog
from perf.pack import Contents, packed_kit

ROOT = Path(__file__).parents[2]
BLOB_BYTES = 696
COPY = """
.version 8.6
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 dynamic_shared[];
.visible .entry copy(.param .align 64 .b8 blob[696])
{
    .reg .pred %p<3>; .reg .b32 %r<9>; .reg .b64 %rd<5>;
    mov.b64 %rd1, blob;
    cvta.param.u64 %rd1, %rd1;
    ld.param.u64 %rd2, [blob+288];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, dynamic_shared;
    mov.u32 %r3, 0;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r2], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 512;
    add.u32 %r4, %r2, 1024;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r4], [%rd1, {8, 0}], [%r2];
READY:
    bar.sync 0;
    { .reg .pred P; LAB_WAIT: mbarrier.try_wait.parity.shared::cta.b64 P, [%r2], %r3; @P bra DONE; bra LAB_WAIT; DONE: }
    mad.lo.u32 %r4, %r1, 16, %r2;
    ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r4+1024];
    mul.wide.u32 %rd3, %r1, 16;
    add.s64 %rd4, %rd2, %rd3;
    st.global.v4.b32 [%rd4], {%r5, %r6, %r7, %r8};
    ret;
}
"""  # noqa: E501  # the wait has the form of the compiler's output


def small_kit(text=COPY):
    """A kit with one kernel that copies a swizzled box of 8 rows, in steps 'copies' and 'maps'."""
    kit = Kit({"target": "sm_90a"})
    kit.images["k0"] = Image("copy", "copy", True, 32)
    kit.files["ptx/k0"] = text.encode()
    x = np.arange(8 * 64, dtype=np.uint16).reshape(8, 64)
    map = TiledMap(shape=(8, 64), dtype="uint16", box=(8, 32), swizzle="64B")
    given = {**map.arguments, "globalAddress": "x"}
    rows = np.ascontiguousarray(x[:, 8:40]).view(np.uint8).reshape(8, 4, 16)
    expected = np.empty_like(rows)
    for row, unit in np.ndindex(8, 4):
        expected[row, unit ^ (row // 2 % 4)] = rows[row, unit]
    fields = dict.fromkeys(Call._fields, 0)
    blob = bytes(256) + np.array(Call(**fields), np.int64).tobytes()
    launch = Launch(
        "copies",
        "a box",
        "k0",
        1,
        2048,
        blob + bytes(BLOB_BYTES - len(blob)),
        (given, None),
        {"x": {"bytes": x.nbytes, "offset": 0}, "y": {"bytes": 512, "offset": 0}},
        {
            "kind": "files",
            "shows": "units",
            "arrays": {"x": kit.keep("data/x", x)},
            "expected": kit.keep("data/y", expected),
        },
        {0: "A full[0]"},
    )
    kit.launches += [launch, replace(launch, name="the box again")]
    kit.maps.append(("a map", given))
    return kit


def rehearse(kit, folder):
    """The report of a rehearsal in processes without numba, and its exit status."""
    path = folder / "test.kit"
    kit.save(path)
    (folder / "numba").mkdir()
    for name in ("numba", "llvmlite", "numba_cuda"):
        (folder / "numba" / f"{name}.py").write_text("raise ImportError('not on this machine')")
    paths = os.pathsep.join([str(folder / "numba"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "perf.bringup", "rehearse", str(path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr
    return path.with_suffix(".txt").read_text(), done.returncode


@pytest.mark.slow
def test_a_rehearsal_without_numba_and_compilers_is_right(tmp_path):
    report, status = rehearse(small_kit(), tmp_path)
    assert status == 0 and "Nothing has failed so far." in report
    heads = [line for line in report.splitlines() if line.startswith("## ")]
    assert [head.split(":")[0][3:] for head in heads] == "driver maps copies rates tools".split()
    assert "## copies: 2 right, 0 failed, 0 not run" in heads


def verdicts(kit, step, capsys, device=None):
    """[(item, verdict, its lines)] of a step, run in this process."""
    steps.report_items(kit, Path("test.kit"), step, device or Interpreter(kit))
    found = run.outcomes(step, Ended(0, capsys.readouterr().out, 0.0))
    return [(outcome.name, outcome.verdict, outcome.lines) for outcome in found]


def test_a_wait_that_never_ends_is_named(capsys):
    """Instead of a deadlock: the watchdog's record, and that y was not written."""
    lacking = COPY.replace("_, [%r2], 512", "_, [%r2], 528")
    (name, verdict, lines), _ = verdicts(small_kit(lacking), "copies", capsys)
    assert (name, verdict) == ("a box", "WRONG: waits gave up")
    assert lines[0] == "block 0: warp 0 gave up waiting for parity 0 of A full[0]"
    assert "32 of 32 units of 16 bytes are wrong" in lines
    assert any(line.endswith("00") and "line 0 unit 0 was not written" in line for line in lines)


def test_wrong_units_of_a_copy_are_looked_up(capsys):
    moved = COPY.replace(
        "mad.lo.u32 %r4, %r1, 16, %r2;", "xor.b32 %r4, %r1, 1; mad.lo.u32 %r4, %r4, 16, %r2;"
    )
    (_, verdict, lines), _ = verdicts(small_kit(moved), "copies", capsys)
    assert "bytes are wrong" in verdict
    assert "  32 are moved by unit XOR 1" in lines
    assert any("line 0 unit 0 holds what belongs to line 0 unit 1" in line for line in lines)
    got = diagnose.undump(lines[-1]).reshape(32, 16)
    kit = small_kit()
    expected = np.frombuffer(kit.files["data/y"], np.uint8).reshape(32, 16)
    assert np.array_equal(got, expected[np.arange(32) ^ 1])


def test_a_gpu_is_given_maps_kernels_and_arguments(recorder, capsys):
    """A driver that computes nothing leaves y as it was poisoned; its watchdog table is read."""
    kit = small_kit()
    kit.files["cubin/k0"] = b"image"
    table = recorder._cuMemAlloc(watchdog.TABLE_BYTES)
    recorder._cuLibraryGetGlobal = lambda library, name: (table, watchdog.TABLE_BYTES)
    recorder.memory[int(table)][:] = 0
    words = recorder.memory[int(table)].view(np.uint32)
    words[0], words[4:8] = 1, (5, 40, 0, 1)
    device = Gpu(kit)
    (_, verdict, lines), *loads = verdicts(kit, "driver", capsys, device)
    assert verdict == "right" and "recorded, sm_90a, 132 multiprocessors" in lines[0]
    assert [verdict for _, verdict, _ in loads] == ["right"]
    _, (_, verdict, lines) = verdicts(kit, "copies", capsys, device)
    assert verdict == "WRONG: waits gave up"
    assert lines[0] == "block 5: warp 1 gave up waiting for parity 1 of A full[0]"
    config, *_ = recorder["cuLaunchKernelEx"][-1]
    assert (config.gridDimX, config.blockDimX, config.sharedMemBytes) == (1, 32, 2048)
    call, *_ = recorder.launched()
    assert call.x == recorder["cuTensorMapEncodeTiled"][-1][2] and call.y > call.x
    assert recorder.blob[:128] == np.arange(16, dtype=np.uint64).tobytes()
    assert [verdict for _, verdict, _ in verdicts(kit, "maps", capsys, device)] == ["right"]
    refused = recorder.CUresult.CUDA_ERROR_INVALID_VALUE
    recorder.failures["cuTensorMapEncodeTiled"] = refused
    kit.maps.append(("permuted axes", kit.maps[0][1]))
    (_, first, _), (_, second, _) = verdicts(kit, "maps", capsys, device)
    assert first.startswith("WRONG: refused: cuTensorMapEncodeTiled failed with")
    assert second.startswith("not run: refused:")


def test_a_text_without_known_waits_gets_no_watchdog():
    with pytest.raises(ValueError, match="0 of 0 waits"):
        with_watchdog(COPY.replace("LAB_WAIT", "LAB"))
    with pytest.raises(ValueError, match="0 of 1 waits"):
        with_watchdog(COPY.replace("@P bra DONE; bra", "@!P bra"))


CASE = Case(2, 48, 40, size=(5, 7), padding=((1, 1), (1, 1)), layout="NHWC", weight_layout="KRSC")
PROBLEM = Problem(CASE, "bfloat16", 3, residual=True)
SLIPS = {
    "tap (1, 2) is missing": lambda v: v["w"][:, :, 1, 2].fill(0),
    "channels 32 to 64 are missing": lambda v: v["w"][:, 32:].fill(0),
    "taps are in reverse order": lambda v: v.update(w=v["w"][:, :, ::-1, ::-1]),
    "H is off by 1": lambda v: v.update(
        x=np.pad(v["x"], ((0, 0), (0, 0), (0, 1), (0, 0)))[:, :, 1:]
    ),
    "no bias is added": lambda v: v["bias"].fill(0),
    "no residual is added": lambda v: v["residual"].fill(0),
}


def test_rows_of_y_in_the_place_of_others_are_recognised():
    y = PROBLEM.data().expected.copy()
    rows = y.reshape(-1, 80)
    rows[:-8] = rows[8:].copy()
    lines = diagnose.elements(PROBLEM, y, (64, 32, 32))
    assert [line for line in lines if line.startswith("  explained by: gemm_m is off by 8 (")]


def test_exchanged_offsets_are_recognised():
    """Tap (r, s) of a filter whose dilations differ reads s rows and r columns further."""
    case = replace(CASE, kernel=(2, 3), dilation=(2, 1))
    problem = PROBLEM._replace(case=case)
    values, (P, Q) = problem.values(), case.output
    x = np.pad(values["x"], ((0, 0), (0, 0), (1, 9), (1, 9)))
    sums = np.zeros((case.N, case.K, P, Q))
    for r, s in np.ndindex(2, 3):
        seen = x[:, :, s : s + P, 2 * r : 2 * r + Q]
        sums += np.einsum("nchw,kc->nkhw", seen, values["w"][:, :, r, s])
    y = sums + values["bias"][:, None, None] + values["residual"]
    kept = stored(np.ascontiguousarray(y.transpose(0, 2, 3, 1)), "bfloat16")
    lines = diagnose.elements(problem, kept.reshape(-1).view(np.uint8), (64, 32, 32))
    assert "  explained by: offsets of H and W are exchanged (100 % of the wrong elements)" in lines


def test_blocks_that_wait_alike_share_a_line():
    table = np.zeros(watchdog.TABLE_BYTES, np.uint8)
    words = table.view(np.uint32).reshape(-1, 4)
    given = [(b, 32 * w + 1, 8, 1) for b in (1, 0) for w in (2, 0)] + [(1, 96, 40, 0)]
    words[0, 0], words[1:6] = 5, given
    assert watchdog.records(table, {8: "A empty[0]"}) == [
        "blocks 0, 1: warps 0, 2 gave up waiting for parity 1 of A empty[0]",
        "block 1: warp 3 gave up waiting for parity 0 of the barrier at offset 40",
    ]
    words[0, 0] = 1 << 20  # more than there is room for
    assert len(watchdog.records(table, {})) == 3


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_of_a_kernel_is_recognised(slip):
    values = PROBLEM.values()
    SLIPS[slip](values)
    y = PROBLEM.result(values).transpose(0, 2, 3, 1)
    kept = stored(np.ascontiguousarray(y), "bfloat16")
    lines = diagnose.elements(PROBLEM, kept.reshape(-1).view(np.uint8), (64, 32, 32))
    assert [line for line in lines if line.startswith(f"  explained by: {slip} (")]


def test_elements_that_were_never_written_show():
    y = PROBLEM.data().expected.copy()
    y.reshape(-1, 80)[64:] = 0xFF  # of the second tile
    lines = diagnose.elements(PROBLEM, y, (64, 32, 32))
    assert lines[0].startswith("240 of 2800 elements are wrong, 240 of them NaN")
    assert "  gemm_m / 64: 1: 240" in lines


def test_a_kit_is_read_as_it_was_written(tmp_path):
    kit = small_kit()
    recipe = PROBLEM.recipe()
    kit.launches.append(replace(kit.launches[0], recipe=recipe))
    kit.save(tmp_path / "a.kit")
    found = read(tmp_path / "a.kit")
    assert (found.about, found.images, found.files) == (kit.about, kit.images, kit.files)
    assert found.launches[0].blob == kit.launches[0].blob
    assert found.launches[0].regions == {0: "A full[0]"}
    assert Problem.read(found.launches[2].recipe) == PROBLEM


def test_a_large_kit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(kits, "LIMIT_BYTES", 1 << 16)
    kit = small_kit()
    kit.files["noise"] = np.random.default_rng(0).bytes(1 << 16)
    with pytest.raises(ValueError, match="less than 65536; pack less"):
        kit.save(tmp_path / "a.kit")
    assert not (tmp_path / "a.kit").exists()


def test_after_a_crash_each_item_has_a_process(monkeypatch, tmp_path):
    """The crash is named by its item, and the items after it still run."""
    calls = []

    def run_module(*arguments, seconds):
        first, count = int(arguments[-3]), int(arguments[-1])
        calls.append((first, min(count, 2)))
        names = ["a", "b", "c", "d"][first : first + count]
        lines = []
        for number, name in enumerate(names, start=first):
            lines.append(f"-- {number} {name}")
            if name == "b":
                return Ended(-11, "\n".join([*lines, "illegal address"]), 1.0)
            lines.append("== right")
        return Ended(0, "\n".join(lines), 1.0)

    monkeypatch.setattr(run, "run_module", run_module)
    monkeypatch.setattr(run, "SECONDS", {"problems": 1})
    assert not run.run(tmp_path / "a.kit", "gpu", tmp_path / "report.txt")
    assert calls == [(0, 2), (2, 1), (3, 1), (4, 1)]
    report = (tmp_path / "report.txt").read_text()
    assert "FIRST FAILURE: problems: b: CRASHED: its process ended with status -11" in report
    assert "    illegal address\n" in report
    assert "## problems: 3 right, 1 failed, 0 not run" in report


def test_a_crash_between_items_is_no_silence():
    """As where a driver fails when the process ends."""
    *_, last = run.outcomes("maps", Ended(-6, "-- 4 a\n== right\naborted", 1.0))
    assert (last.number, last.name, last.failed) == (4, "after a", True)
    (only,) = run.outcomes("maps", Ended(None, "", 60.0))
    assert only.verdict == "CRASHED: its process did not end within 60 s"
    assert run.outcomes("maps", Ended(0, "", 1.0)) == []


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None or tool("ptxas") is None,
    reason="needs pip install '.[cu13,assemble]' in a checkout",
)
def test_a_planted_fault_is_named(capsys):
    """Packed kernels pass; a stage that is never released is named by ring, stage and parity.

    A kernel on the CUDA cores has no barriers, and so no watchdog.
    """
    only = "wgmma by descr.* 64x32x32|direct vectors bfloat16 128x16"
    contents = Contents(problems=1, small=True, only=only, networks=())
    kit = packed_kit(contents)
    kit.launches = [*kit.of_step("problems"), *list(kit.of_step("descriptors"))[::9]]
    for step in ("descriptors", "problems"):
        assert {verdict for _, verdict, _ in verdicts(kit, step, capsys)} == {"right"}
    fault = next(fault for fault in FAULTS if fault.name == "a stage is never released")
    direct, launch, *_ = kit.of_step("problems")
    assert [kit.images[of.image].watchdog for of in (direct, launch)] == [False, True]
    key = f"ptx/{launch.image}"
    planted = fault.planted(kit.files[key].decode())
    assert planted != kit.files[key].decode()
    kit.files[key] = planted.encode()
    _, verdict, lines = verdicts(kit, "problems", capsys)[1]
    assert verdict == "WRONG: waits gave up"
    assert any(re.search(r"waiting for parity [01] of [AB] (full|empty)\[\d\]", x) for x in lines)
