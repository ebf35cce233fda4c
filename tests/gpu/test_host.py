"""The host side of a launch, on a driver that records its calls (conftest.py)."""

import copy
import pickle
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from implicit_conv.errors import DriverError, PlanError
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.arch import gpu_arch
from implicit_conv.gpu.cuda.encode import encode
from implicit_conv.gpu.plan.maps import activation_map, filter_map
from implicit_conv.gpu.plan.planner import choose
from implicit_conv.gpu.run import launch
from implicit_conv.gpu.run.engine import GpuEngine
from implicit_conv.kernels.gpu.targets import supports
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.operators.plan import Plan
from implicit_conv.problem.options import GPU_DTYPES
from implicit_conv.problem.problem import Problem
from implicit_conv.testing.gpu import check_arrays, device_memory, hardware
from implicit_conv.testing.gpu.problems import production_problems
from implicit_conv.tma.maps.encoding import PARAMETERS
from perf.bringup.processes import run_module


def problem(**changes):
    options = {"padding": 1, "layout": "NHWC", "weight_layout": "KRSC", **changes}
    return Problem.parse((2, 8, 8, 64), (64, 3, 3, 64), "float16", dtypes=GPU_DTYPES, **options)


def plan(*arguments, **options):
    """A plan of the planner's choice, outside of the plan cache."""
    return Plan(GpuEngine(choose(*arguments, **options)))


@pytest.fixture
def arrays(device_array):
    """x, w and y of `problem`."""
    return (
        device_array(4096, (2, 8, 8, 64)),
        device_array(1 << 16, (64, 3, 3, 64)),
        device_array(1 << 20, (2, 8, 8, 64)),
    )


@pytest.mark.parametrize("function", PARAMETERS)
def test_a_map_is_encoded_with_arguments_in_the_order_of_the_bindings(function):
    """Their own docstrings begin with the signature: "name(tensorDataType: CUtensor..., ...)"."""
    bindings = pytest.importorskip("cuda.bindings.driver", exc_type=ImportError)
    signature = getattr(bindings, function).__doc__.partition("(")[2].partition(")\n")[0]
    names = [part.partition(":")[0].split()[-1] for part in signature.split(",")]
    assert names == list(PARAMETERS[function])


def test_one_launch_no_allocation_maps_encoded_once(recorder, arrays):
    made = plan(problem(), driver.current_arch())
    assert made.engine.variant.producer == "tma"
    x, w, y = arrays
    assert made(x, w, out=y) is y
    made(x, w, out=y)
    assert not recorder["cuMem"]
    assert len(recorder["cuTensorMapEncode"]) == 2
    assert len(recorder["cuLibraryLoadData"]) == 1
    call, _, _, config = recorder.launched()
    choice = made.engine.choice
    assert (config.gridDimX, config.blockDimX) == (choice.blocks, choice.variant.threads)
    assert config.sharedMemBytes == choice.layout.total and int(config.hStream) == 77
    assert recorder["cuLaunchKernelEx"][-1][3] == 0
    assert recorder.blob[:128] == np.arange(16, dtype=np.uint64).tobytes()
    assert (call.x, call.w, call.y, call.bias) == (4096, 1 << 16, 1 << 20, 0)
    assert (call.x_n, call.x_h, call.x_w, call.x_c) == (8192, 1024, 128, 2)
    assert call.tiles == np.prod(made.engine.choice.tiles)


def test_arrays_elsewhere_are_patched_into_a_launch_made_ready(recorder, device_array, arrays):
    made = plan(problem(), driver.current_arch())
    x, w, y = arrays
    made(x, w, out=y)
    ready = list(made.engine.calls.values())
    bias, residual = device_array(1 << 21, (64,)), device_array(1 << 22, (2, 8, 8, 64))
    made(device_array(1 << 23, (2, 8, 8, 64)), w, out=residual)
    assert list(made.engine.calls.values()) == ready
    call, *_ = recorder.launched()
    assert (call.x, call.w, call.y) == (1 << 23, 1 << 16, 1 << 22)
    assert len(recorder["cuTensorMapEncode"]) == 2
    assert [address for _, address in recorder["cuTensorMapReplaceAddress"]][-2:] == [
        1 << 23,
        1 << 16,
    ]
    made(x, w, bias, residual=residual, out=y)
    call, *_ = recorder.launched()
    assert (call.x, call.bias, call.residual, call.y) == (4096, 1 << 21, 1 << 22, 1 << 20)
    assert len(made.engine.calls) == 2
    made(device_array(4098, (2, 8, 8, 64)), w, out=y)
    assert recorder.variants[-1].producer == "elements"


def test_a_repeated_call_makes_nothing_new(recorder, device_array, arrays):
    """Blobs are kept by addresses; beyond `BLOBS_KEPT` all are made again."""
    made = plan(problem(), driver.current_arch())
    x, w, y = arrays
    made(x, w, out=y)
    (ready,) = made.engine.calls.values()
    blob = ready.launcher.blobs[4096, 1 << 16, None, None, 1 << 20]
    moved = len(recorder["cuTensorMapReplaceAddress"])
    made(x, w, out=y)
    assert [*ready.launcher.blobs.values()] == [blob]
    assert len(recorder["cuTensorMapReplaceAddress"]) == moved
    assert blob.address % 64 == 0
    for number in range(launch.BLOBS_KEPT):
        made(device_array((1 << 23) + 4096 * number, (2, 8, 8, 64)), w, out=y)
    assert len(ready.launcher.blobs) == 1
    call, *_ = recorder.launched()
    assert call.x == (1 << 23) + 4096 * (launch.BLOBS_KEPT - 1)


@pytest.mark.parametrize("permuted", [True, False])
def test_a_driver_that_refuses_permuted_axes_gets_plain_maps(recorder, arrays, permuted):
    refused = []

    def encode_once(*_):
        """Refuse the first map, as a driver may refuse its strides."""
        if not refused:
            refused.append(True)
            raise DriverError("cuTensorMapEncodeIm2col failed with CUDA_ERROR_INVALID_VALUE")
        return SimpleNamespace(opaque=list(range(16)))

    recorder._cuTensorMapEncodeIm2col = encode_once
    mode = "w" if permuted else "im2col"
    v = Variant(mode, "tma", "wgmma", "float16", 64, 64, 128, 4, 1, permuted, descriptors=True)
    made = plan(problem(), gpu_arch("sm_90a"), variant=v)
    if not permuted:
        with pytest.raises(DriverError, match="INVALID_VALUE"):
            made(*arrays[:2], out=arrays[2])
        return
    made(*arrays[:2], out=arrays[2])
    assert recorder.variants[-1] == replace(recorder.variants[0], mode="im2col", permuted=False)
    assert len(recorder["cuLaunchKernelEx"]) == 1


def test_maps_of_small_tensors_on_blackwell_lack_the_dense_bit(recorder):
    """Drivers before 595.71 set it, and then read past an allocation of less than 128 KiB."""
    dense = SimpleNamespace(opaque=[2**64 - 1] * 16)
    recorder._cuTensorMapEncodeIm2col = lambda *_: dense
    v = Variant("im2col", "tma", "mma", "float16", 64, 32, 64, 2, 1)
    for cc, images, cleared in (
        ((10, 0, "a"), 2, True),
        ((10, 0, "a"), 16, False),
        ((9, 0, "a"), 2, False),
    ):
        x = replace(problem(), N=images)
        words = np.frombuffer(encode(activation_map(x, v, 4096), cc), np.uint64)
        expected = [2**64 - 1] * 16
        expected[1] -= cleared << 21
        assert words.tolist() == expected


def test_copies_of_a_plan_have_no_calls(recorder, arrays):
    """Calls hold handles of this process, and kernels of this choice."""
    made = plan(problem(), driver.current_arch())
    made(*arrays[:2], out=arrays[2])
    engine = made.engine
    copies = pickle.loads(pickle.dumps(engine)), copy.copy(engine), replace(engine, device=1)
    assert engine.calls and not any(other.calls for other in copies)
    assert copies[0] == copies[1] == engine


def test_each_launch_is_on_the_stream_of_its_arrays(recorder, device_array, arrays):
    made = plan(problem(), driver.current_arch())
    x, w, y = arrays
    other = device_array(4096, (2, 8, 8, 64), stream=99)
    for source in (x, other, x):
        made(source, w, out=y)
    streams = [int(config.hStream) for config, *_ in recorder["cuLaunchKernelEx"]]
    assert streams == [77, 99, 77]


def test_shared_memory_is_allowed_for_before_the_first_launch(recorder, arrays):
    """More than 48 KB of dynamic shared memory must be requested once per kernel and device."""
    made = plan(problem(), driver.current_arch())
    made(*arrays[:2], out=arrays[2])
    ((name, size, _, device),) = recorder["cuKernelSetAttribute"]
    assert name.name == "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
    assert size == 227 << 10 >= made.engine.choice.layout.total and int(device) == 0


@pytest.mark.parametrize(
    ("address", "strides", "loader"),
    [
        (4098, None, "element"),
        (4100, None, "4-byte cp.async"),
        (4104, None, "8-byte cp.async"),
        (4096, (16384, 2048, 256, 2), "cp.async"),
        (4096, (8640, 1080, 136, 2), "8-byte cp.async"),
    ],
    ids=["2 bytes off", "4 bytes off", "8 bytes off", "every other column", "68 channels apart"],
)
def test_arrays_a_map_cannot_hold_take_slower_kernels(
    recorder, device_array, arrays, caplog, address, strides, loader
):
    made = plan(problem(), gpu_arch("sm_90"))
    x = device_array(address, (2, 8, 8, 64), np.float16, strides)
    with caplog.at_level("DEBUG", logger="implicit_conv"):
        made(x, arrays[1], out=arrays[2])
    assert f": {loader} im2col" in caplog.text
    whole = strides is None or strides[2] % 16
    assert ("aligned to 16 bytes" if whole else "not contiguous") in caplog.text
    assert not recorder["cuTensorMapEncode"]
    assert recorder.launched()[3].blockDimX == 256


def test_epilogue_follows_the_arrays_and_loads_stay(recorder, device_array, arrays):
    """A residual, or an output that 16-byte stores cannot write, changes only the epilogue."""
    made = plan(problem(), gpu_arch("sm_90"))
    x, w, y = arrays
    odd = device_array((1 << 20) + 2, (2, 8, 8, 64))
    made(x, w, out=odd)
    made(x, w, residual=y, out=y)
    made(x, w, device_array((1 << 21) + 2, (64,)), out=y)
    made(x, w, device_array(1 << 21, (64,)), out=y)
    made(x, w, residual=device_array((1 << 22) + 2, (2, 8, 8, 64)), out=y)
    assert made.engine.variant.packed and made.engine.variant.plain
    assert len(recorder["cuTensorMapEncode"]) == 10  # a pair for each kernel
    assert {config.blockDimX for config, *_ in recorder["cuLaunchKernelEx"]} == {
        made.engine.variant.threads
    }
    assert all(v.plain for v in recorder.variants)
    found = [(v.packed, v.residual, v.biased) for v in recorder.variants]
    assert found == [
        (False, False, False),
        (True, True, False),
        (False, False, True),  # a bias at an odd element is not read in pairs
        (True, False, True),
        (False, True, False),  # a residual is read 16 bytes at a time too
    ]


def test_maps_become_driver_calls(recorder):
    arch = gpu_arch("sm_120")
    for candidate in plan(problem(stride=2), arch).candidates:
        v = candidate.variant
        if v.producer != "tma":
            continue
        assert len(encode(activation_map(problem(stride=2), v, 4096), arch.cc)) == 128
        assert len(encode(filter_map(problem(stride=2), v, 4096), arch.cc)) == 128
    names = {name for name, _ in recorder.calls}
    assert names == {
        "cuTensorMapEncodeTiled",
        "cuTensorMapEncodeIm2col",
        "cuTensorMapEncodeIm2colWide",
    }
    box = recorder["cuTensorMapEncodeTiled"][0]
    assert [int(v) for v in box[3]] == [64, 9, 64]  # c, taps, k
    assert [int(v) for v in box[4]] == [128, 9 * 128]  # bytes from tap to tap, filter to filter


@pytest.mark.parametrize("mode", ["im2col", "w"])
def test_the_driver_gets_the_walk_of_each_map(recorder, mode):
    """Axes are fastest first, W before H, which differ in size, stride, dilation and padding."""
    lopsided = Problem.parse(
        (4, 5, 8, 40),
        (55, 3, 2, 40),
        "bfloat16",
        dtypes=GPU_DTYPES,
        stride=(3, 1),
        dilation=(1, 3),
        padding=((1, 0), (3, 2)),
        layout="NHWC",
        weight_layout="KRSC",
    )
    v = Variant(mode, "tma", "mma", "bfloat16", 64, 32, 64, 2, 1)
    encode(activation_map(lopsided, v, 4096), (12, 0, "a"))
    ((name, arguments),) = recorder.calls
    kind, rank, address, dims, strides, *rest = arguments
    assert (kind.name, rank, address) == ("CU_TENSOR_MAP_DATA_TYPE_UINT16", 4, 4096)
    assert [int(value) for value in dims] == [40, 8, 5, 4]
    assert [int(value) for value in strides] == [80, 640, 3200]
    if mode == "im2col":
        assert name == "cuTensorMapEncodeIm2col"
        assert rest[:4] == [[-3, -1], [2 - 3, 0 - 2], 32, 64]
        assert [int(value) for value in rest[4]] == [1, 1, 3, 1]
    else:
        assert name == "cuTensorMapEncodeIm2colWide"
        # Q is 10, but with 10 slots pixel 7 would begin the next row. So 11 slots: w = -3 .. 7.
        assert rest[:4] == [-3, 0, 32, 64]
        assert [int(value) for value in rest[4]] == [1, 1, 1, 1]
        assert rest[6].name == "CU_TENSOR_MAP_IM2COL_WIDE_MODE_W"
    assert rest[-3].name == "CU_TENSOR_MAP_SWIZZLE_64B"


def test_a_device_reports_its_properties(recorder):
    arch = driver.current_arch()
    assert (arch.target, arch.sms, arch.smem_bytes, arch.device) == (
        "sm_90a",
        132,
        227 << 10,
        "recorded",
    )


def test_a_later_gpu_is_planned_for_as_the_nearest_supported_one(recorder):
    recorder.capability = 11, 0
    assert driver.current_arch().target == "sm_110a"
    assert driver.current_arch().mma_flops == gpu_arch("sm_103").mma_flops


def test_an_early_gpu_is_refused_with_the_way_out(recorder):
    recorder.capability = 7, 5
    with pytest.raises(PlanError, match=r"recorded has compute capability 7\.5, .* need 8\.0"):
        driver.current_arch()


def test_no_driver_says_what_is_needed():
    driver.bindings.cache_clear()
    try:
        driver.bindings()
    except PlanError as error:
        assert "install" in str(error)
    else:
        pytest.skip("this machine has a driver")


def fake_bindings(monkeypatch, version, status="CUDA_SUCCESS"):
    """cuda.bindings of CUDA 13 over a driver of `version`."""
    import sys

    result = SimpleNamespace(CUDA_SUCCESS=SimpleNamespace(name="CUDA_SUCCESS"))
    answer = result.CUDA_SUCCESS if status == "CUDA_SUCCESS" else SimpleNamespace(name=status)
    module = SimpleNamespace(
        CUresult=result,
        CUDA_VERSION=13040,
        cuInit=lambda flags: (answer,),
        cuDriverGetVersion=lambda: (result.CUDA_SUCCESS, version),
    )
    monkeypatch.setitem(sys.modules, "cuda", SimpleNamespace(bindings=module))
    monkeypatch.setitem(sys.modules, "cuda.bindings", SimpleNamespace(driver=module))
    monkeypatch.setattr(driver, "bindings", driver.bindings.__wrapped__)
    return module


def test_an_old_driver_says_what_to_update(monkeypatch):
    fake_bindings(monkeypatch, 12080)
    told = r'for CUDA 12\.8.* for CUDA 13: update the driver, or .*pip install "numba-cuda\[cu12\]'
    with pytest.raises(PlanError, match=told):
        driver.bindings()


def test_a_driver_of_the_same_generation_is_taken(monkeypatch):
    assert fake_bindings(monkeypatch, 13000) is driver.bindings()


def test_no_device_says_so(monkeypatch):
    fake_bindings(monkeypatch, 13000, "CUDA_ERROR_NO_DEVICE")
    with pytest.raises(DriverError, match="NO_DEVICE: no GPU is visible; leave device unset"):
        driver.bindings()


def test_driver_errors_carry_advice(recorder, arrays):
    failed = recorder.CUresult.CUDA_ERROR_OUT_OF_MEMORY
    recorder.failures["cuMemAlloc"] = failed
    made = plan(problem(), driver.current_arch())
    with pytest.raises(DriverError, match=r"cuMemAlloc.*MEMORY: free device memory"):
        made(np.zeros((2, 8, 8, 64), np.float16), np.zeros((64, 3, 3, 64), np.float16))
    refused = recorder.CUresult.CUDA_ERROR_INVALID_VALUE
    recorder.failures["cuTensorMapEncodeIm2col"] = refused
    with pytest.raises(DriverError, match=r"INVALID_VALUE: implicit_conv\.tma\.lint explains"):
        made(*arrays[:2], out=arrays[2])


def test_another_device_is_current_for_the_call_alone(recorder):
    with driver.on(1) as number:
        assert number == driver.current_device() == 1
        with driver.on(None) as inner:
            assert inner == 1
    assert recorder.contexts == [0]


@pytest.mark.parametrize(
    ("command", "failures"),
    [(("family", "tma-mma", "5", "3"), 2), (("copies",), 10), (("maps",), 0)],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_hardware_checks_reach_a_verdict(recorder, monkeypatch, command, failures):
    """With a driver that computes nothing, every result is wrong and is reported so."""
    wrong = lambda _, shape, dtype: np.full(shape, 77, dtype)  # noqa: E731
    monkeypatch.setattr(device_memory, "fetched", wrong)
    assert len(list(hardware.COMMANDS[command[0]](*command[1:]))) == failures


def test_a_check_says_what_is_missing(monkeypatch, capsys):
    """Its exit status differs from that of a failure."""
    fake_bindings(monkeypatch, 12080)
    assert hardware.main(["layers"]) == 2
    assert "cannot run: the CUDA driver is for CUDA 12.8" in capsys.readouterr().out
    assert hardware.main(["nonsense"]) == 2
    assert "family NAME" in capsys.readouterr().out


def test_a_check_fails_with_what_was_wrong(recorder, monkeypatch, capsys):
    monkeypatch.setitem(hardware.COMMANDS, "layers", lambda: iter(["kernel: 3 units"]))
    assert hardware.main(["layers"]) == 1
    assert capsys.readouterr().out == "WRONG: kernel: 3 units\n1 wrong\n"
    assert hardware.main(["here"]) == 0
    assert hardware.main(["family", "tma-w-mma", "1"]) == 2  # im2col::w on sm_90
    assert "tma-w-mma needs sm_100 or later, but this is sm_90a" in capsys.readouterr().out


def test_a_kernel_that_crashes_is_named_with_its_problem(recorder, monkeypatch, capfd):
    """And the process ends at once: the context is lost."""
    refused = recorder.CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    recorder.failures["cuStreamQuery"] = refused
    codes = []
    monkeypatch.setattr(hardware.os, "_exit", codes.append)
    hardware.main(["family", "tma-mma", "9", "4"])
    assert codes == [hardware.CRASHED]
    named, wrong, *_ = capfd.readouterr().out.splitlines()
    assert re.match(r"4: TMA im2col \+ mma bfloat16 32x32x32, Case\(.*C=", named)
    assert wrong == "WRONG: the kernel failed with CUDA_ERROR_ILLEGAL_ADDRESS"


def test_a_process_that_does_not_end_keeps_what_it_printed():
    """Also what its children printed, which end with it."""
    code = "import subprocess, sys; print('first', flush=True); subprocess.run(['sleep', '60'])"
    done = run_module("timeit", "-n1", "-r1", code, seconds=2)
    assert done.status is None and done.output == "first\n" and done.seconds < 30


def test_production_problems_run_every_kernel_of_the_planner():
    found = [made.variant for _, made in production_problems(gpu_arch("sm_90"), 1, seed=0)]
    assert len(found) == len(set(found)) >= 40
    assert {v.threads for v in found} >= {384, 288} and {v.tile_n for v in found} >= {64, 128, 256}
    assert all(supports(v.target, (9, 0, "a")) for v in found)


def test_a_kernel_that_does_not_end_is_an_error(recorder, monkeypatch):
    recorder.failures["cuStreamQuery"] = recorder.CUresult.CUDA_ERROR_NOT_READY
    monkeypatch.setattr(device_memory, "PATIENCE", 0.01)
    with pytest.raises(device_memory.StuckError, match="did not end within"):
        device_memory.wait()
    recorder.failures["cuStreamQuery"] = recorder.CUresult.CUDA_ERROR_ILLEGAL_INSTRUCTION
    with pytest.raises(DriverError, match="failed with CUDA_ERROR_ILLEGAL_INSTRUCTION"):
        device_memory.wait()


def test_arrays_of_numpy_are_checked_through_the_public_function(recorder):
    assert list(check_arrays._numpy(np)) == []
