"""The host side of a launch without a GPU: a driver that records what it is asked.

Structures and enumerations are those of cuda.bindings; nothing here shows that a driver accepts
them.
"""

import ctypes
import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest

from implicit_conv.errors import DTypeError, PlanError, ShapeError
from implicit_conv.gpu import check, driver, launch, load
from implicit_conv.gpu.arch import gpu_arch
from implicit_conv.gpu.arrays import current_stream, is_device_array, operand
from implicit_conv.gpu.candidates import Options
from implicit_conv.gpu.encode import encode
from implicit_conv.gpu.maps import activation_map, filter_map
from implicit_conv.gpu.plan import plan
from implicit_conv.kernels import ptx
from implicit_conv.problem import GPU_DTYPES, Problem

needs_bindings = pytest.mark.skipif(
    importlib.util.find_spec("cuda") is None or importlib.util.find_spec("cuda.bindings") is None
    or ptx.SIMULATED,
    reason="needs cuda-bindings: pip install 'implicit-conv[cu13]'",
)  # fmt: skip
needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("numba_cuda") is None or ptx.SIMULATED,
    reason="needs numba-cuda: pip install 'implicit-conv[cu13]'",
)
STREAM = 77


class Device:
    """A device array: an address and the interface; it remembers nothing else."""

    def __init__(self, address, shape, dtype=np.float16, strides=None):
        self.__cuda_array_interface__ = {
            "data": (address, False), "shape": shape, "typestr": np.dtype(dtype).str,
            "strides": strides, "version": 3, "stream": STREAM,
        }  # fmt: skip


class Recorder:
    """cuda.bindings.driver whose functions are recorded and succeed."""

    def __init__(self, real):
        self.real, self.calls = real, []

    def __getattr__(self, name):
        value = getattr(self.real, name)
        if not (name.startswith("cu") and name[2].isupper() and callable(value)) or "_t" in name:
            return value

        def call(*arguments):
            self.calls.append((name, arguments))
            if name == "cuLaunchKernelEx":
                where = ctypes.cast(arguments[2], ctypes.POINTER(ctypes.c_void_p))[0]
                self.blob = ctypes.string_at(where, BLOB_BYTES)
            if name == "cuStreamQuery":
                return (self.real.CUresult.CUDA_SUCCESS,)
            return self.real.CUresult.CUDA_SUCCESS, self.answer(name, arguments)

        return call

    def answer(self, name, arguments):
        if name.startswith("cuTensorMap"):
            return SimpleNamespace(opaque=list(range(16)))
        if name == "cuDeviceGetName":
            return b"recorded\0"
        if name == "cuDeviceGetAttribute":
            return {"MAJOR": 9, "MINOR": 0, "COUNT": 132, "OPTIN": 227 << 10}[
                arguments[0].name.split("_")[-1]
            ]
        return 0

    def named(self, prefix):
        return [arguments for name, arguments in self.calls if name.startswith(prefix)]


@pytest.fixture
def recorder(monkeypatch):
    from cuda.bindings import driver as real

    recorder = Recorder(real)
    monkeypatch.setattr(driver, "bindings", lambda: recorder)
    cached = (
        driver.device_arch, load.loaded, launch._encoded_activation, launch._encoded_filter,
    )  # fmt: skip
    for function in cached:
        function.cache_clear()
    return recorder


def problem(**changes):
    options = {"padding": 1, "layout": "NHWC", "weight_layout": "KRSC", **changes}
    return Problem.parse(
        (2, 8, 8, 64), (64, 3, 3, 64), "float16", dtypes=GPU_DTYPES, **options
    )  # fmt: skip


BLOB_BYTES = 600


@needs_bindings
@needs_compiler
def test_one_launch_no_allocation_maps_encoded_once(recorder):
    from implicit_conv.kernels.call import Call

    made = plan(problem(), driver.current_arch())
    assert made.variant.producer == "tma"
    x, w, y = (Device(at, (64 if at == 8192 else 2, *shape)) for at, shape in
               ((4096, (8, 8, 64)), (8192, (3, 3, 64)), (1 << 20, (8, 8, 64))))  # fmt: skip
    assert launch.run(made, x, w, out=y) is y
    made(x, w, out=y)
    assert not recorder.named("cuMem")
    assert len(recorder.named("cuTensorMapEncode")) == 2
    assert len(recorder.named("cuLibraryLoadData")) == 1
    config, _, _, extra = recorder.named("cuLaunchKernelEx")[-1]
    assert (config.gridDimX, config.blockDimX) == (made.blocks, made.variant.threads)
    assert config.sharedMemBytes == made.layout.total and int(config.hStream) == STREAM
    assert extra == 0
    blob = recorder.blob
    assert blob[:128] == np.arange(16, dtype=np.uint64).tobytes()
    call = Call(*np.frombuffer(blob[256 : 256 + 8 * len(Call._fields)], np.int64).tolist())
    assert (call.x, call.w, call.y, call.bias) == (4096, 8192, 1 << 20, 0)
    assert (call.x_n, call.x_h, call.x_w, call.x_c) == (8192, 1024, 128, 2)
    assert call.tiles == np.prod(made.tiles)


@needs_bindings
@needs_compiler
def test_arrays_a_map_cannot_hold_take_the_element_kernel(recorder, caplog):
    made = plan(problem(), gpu_arch("sm_90"))
    x = Device(4098, (2, 8, 8, 64))  # 2 bytes off
    w, y = Device(8192, (64, 3, 3, 64)), Device(1 << 20, (2, 8, 8, 64))
    with caplog.at_level("DEBUG", logger="implicit_conv"):
        launch.run(made, x, w, out=y)
    assert "x is not aligned to 16 bytes" in caplog.text
    assert not recorder.named("cuTensorMapEncode")
    assert recorder.named("cuLaunchKernelEx")[0][0].blockDimX == 256


@needs_bindings
def test_maps_become_driver_calls(recorder):
    arch = gpu_arch("sm_120")
    for candidate in plan(problem(stride=2), arch, options=Options(True, True)).candidates:
        v = candidate.variant
        if v.producer != "tma":
            continue
        assert len(encode(activation_map(problem(stride=2), v, 4096))) == 128
        assert len(encode(filter_map(problem(stride=2), v, 4096))) == 128
    names = {name for name, _ in recorder.calls}
    assert names == {
        "cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col", "cuTensorMapEncodeIm2colWide",
    }  # fmt: skip
    box = recorder.named("cuTensorMapEncodeTiled")[0]
    assert [int(v) for v in box[3]] == [64, 9, 64]  # c, taps, k
    assert [int(v) for v in box[4]] == [
        128,
        9 * 128,
    ]  # bytes from tap to tap, from filter to filter


@needs_bindings
def test_device_is_asked_for_what_it_has(recorder):
    arch = driver.current_arch()
    assert (arch.target, arch.sms, arch.smem_bytes, arch.device) == (
        "sm_90a", 132, 227 << 10, "recorded",
    )  # fmt: skip


def test_no_driver_says_what_is_needed():
    driver.bindings.cache_clear()
    try:
        driver.bindings()
    except PlanError as error:
        assert "install" in str(error)
    else:
        pytest.skip("this machine has a driver")


def test_driver_errors_carry_advice():
    status = SimpleNamespace(name="CUDA_ERROR_OUT_OF_MEMORY")
    cuda = SimpleNamespace(CUresult=SimpleNamespace(CUDA_SUCCESS=0))
    with pytest.raises(driver.DriverError, match=r"cuMemAlloc.*MEMORY: free device memory"):
        driver._check(cuda, "cuMemAlloc", status)


class DLPack:
    """A numpy array that says it lies on a GPU."""

    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, stream=None):
        assert stream == -1
        return self.array.__dlpack__()


def test_dlpack_arrays_come_in_without_copies():
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, ::2]
    seen = operand(DLPack(array))
    assert seen.address == array.ctypes.data
    assert (seen.shape, seen.strides, seen.dtype) == (array.shape, array.strides, "float32")
    assert is_device_array(DLPack(array)) and not is_device_array(array)


def test_cuda_array_interface_with_and_without_strides():
    packed = operand(Device(512, (2, 3), np.float32))
    assert packed.strides == (12, 4)
    assert operand(Device(512, (2, 3), np.float32, (4, 8))).strides == (4, 8)
    assert current_stream(Device(512, (2, 3))) == STREAM


def test_wrong_arrays_are_named():
    with pytest.raises(DTypeError, match="ndarray is no device array"):
        operand(np.zeros(3))
    with pytest.raises(DTypeError, match="not served on the GPU"):
        operand(DLPack(np.zeros(3)))
    x = operand(Device(512, (2, 3)))
    with pytest.raises(ShapeError, match=r"x has shape \(2, 3\), but the plan is for \(2, 4\)"):
        x.expect("x", (2, 4), "float16")
    with pytest.raises(DTypeError, match="x is float16, but the plan is for bfloat16"):
        x.expect("x", (2, 3), "bfloat16")


def launched(recorder):
    """The Call of the last launch, and threads a block."""
    from implicit_conv.kernels.call import Call

    words = np.frombuffer(recorder.blob[256 : 256 + 8 * len(Call._fields)], np.int64)
    return Call(*words.tolist()), recorder.named("cuLaunchKernelEx")[-1][0].blockDimX


@needs_bindings
@needs_compiler
def test_memory_order_decides_not_the_names_of_axes(recorder):
    """An N, C, H, W view of channels-last memory takes the copies of 16 bytes."""
    from implicit_conv.gpu.api import conv2d

    x = Device(4096, (2, 64, 8, 8), np.float16, (8192, 2, 1024, 128))
    w = Device(1 << 16, (64, 64, 3, 3), np.float16, (1152, 2, 384, 128))
    y = Device(1 << 20, (2, 64, 8, 8), np.float16, (8192, 2, 1024, 128))
    assert conv2d(x, w, padding=1, out=y) is y
    call, _ = launched(recorder)
    assert (call.x_n, call.x_h, call.x_w, call.x_c) == (8192, 1024, 128, 2)
    assert (call.w_k, call.w_r, call.w_s, call.w_c) == (1152, 384, 128, 2)
    assert (call.y_n, call.y_p, call.y_q, call.y_k) == (8192, 1024, 128, 2)
    assert len(recorder.named("cuTensorMapEncode")) == 2


@needs_bindings
@needs_compiler
def test_channels_first_memory_and_one_image(recorder):
    from implicit_conv.gpu.api import conv2d

    x, w = Device(4096, (64, 8, 8)), Device(1 << 16, (64, 64, 3, 3))
    y, bias = Device(1 << 20, (64, 8, 8)), Device(1 << 12, (64,))
    conv2d(x, w, bias, padding=1, out=y, activation="relu", residual=y)
    call, threads = launched(recorder)
    assert (call.x_c, call.x_h, call.x_w) == (128, 16, 2)
    assert (call.residual, call.bias, threads) == (1 << 20, 1 << 12, 256)
    assert not recorder.named("cuTensorMapEncode")


@needs_bindings
@needs_compiler
def test_numpy_arrays_are_sent_and_fetched(recorder):
    from implicit_conv.gpu.api import conv2d

    y = conv2d(np.ones((2, 8, 9, 9), np.float32), np.ones((8, 8, 3, 3), np.float32))
    assert (y.shape, y.dtype) == ((2, 8, 7, 7), np.float32)
    sent = [arguments[2] for arguments in recorder.named("cuMemcpyHtoD")]
    assert sent == [2 * 81 * 8 * 4, 8 * 9 * 8 * 4]
    assert [arguments[2] for arguments in recorder.named("cuMemcpyDtoH")] == [y.nbytes]
    assert len(recorder.named("cuMemFree")) == len(recorder.named("cuMemAlloc")) == 3


@needs_bindings
@needs_compiler
@pytest.mark.parametrize(
    ("command", "failures"),
    [(("family", "tma-mma", "2"), 2), (("copies",), 8), (("maps",), 0)],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_hardware_checks_reach_a_verdict(recorder, monkeypatch, command, failures):
    """With a driver that computes nothing, every result is wrong and is reported so."""
    monkeypatch.setattr(check, "fetch", lambda _, shape, dtype: np.full(shape, 77, dtype))
    assert len(list(check.COMMANDS[command[0]](*command[1:]))) == failures
