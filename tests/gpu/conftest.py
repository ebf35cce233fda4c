"""A driver that records its calls, and computes what a launch would from the params blob.

Structures and enumerations are those of cuda.bindings; these tests cannot show that a driver
accepts them.
"""

import ctypes
import importlib.util
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from implicit_conv import conv2d_weight_grad
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.gpu.cuda import cubin as load
from implicit_conv.gpu.cuda import driver, transfer
from implicit_conv.kernels.geometry import CLAMP, Geometry
from implicit_conv.kernels.gpu.call import Call, Limits
from implicit_conv.kernels.gpu.sizes import MAP_BYTES, VECTOR_BYTES
from implicit_conv.kernels.gpu.wgrad_variant import ImageCopy, SplitSum, WgradVariant
from implicit_conv.problem import reference
from implicit_conv.problem.options import PADDING_MODES, contiguous_strides
from implicit_conv.process import cache

STREAM = 77
FILTERS = "phase filters "  # the entry of a kernel that copies filters, before the itemsize
PARTS = ((Call, np.int64), (Geometry, np.int32), (Limits, np.float32))


class Device:
    """A device array: an address and the interface, without memory."""

    def __init__(self, address, shape, dtype=np.float16, strides=None, stream=STREAM):
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": shape,
            "typestr": np.dtype(dtype).str,
            "strides": strides,
            "version": 3,
            "stream": stream,
        }


class Recorder:
    """cuda.bindings.driver whose functions are recorded and succeed.

    There are two devices, of which 0 is current; no context is, where `contexts` is empty. A launch
    convolves arrays in memory that was allocated here.
    """

    def __init__(self, real):
        self.real, self.calls, self.capability, self.contexts = real, [], (9, 0), [0]
        self.failures, self.memory, self.blob = {}, {}, b""
        self.entries, self.variants, self.free = [], [], 1 << 24
        self.kernels = []  # the variant of each entry
        self.lock, self.compiled = threading.RLock(), threading.local()
        self.convolved = ["float16", "float32"]  # dtypes that a launch convolves

    def __getattr__(self, name):
        value = getattr(self.real, name)
        if not (name.startswith("cu") and name[2].isupper() and callable(value)) or "_t" in name:
            return value

        def call(*arguments):
            self.calls.append((name, arguments))
            success = self.real.CUresult.CUDA_SUCCESS
            if name == "cuStreamQuery":
                return (self.failures.get(name, success),)
            if name == "cuCtxGetDevice" and not self.contexts:
                return self.real.CUresult.CUDA_ERROR_INVALID_CONTEXT, None
            if name in self.failures:
                return self.failures[name], None
            with self.lock:
                answer = getattr(self, f"_{name}", self.other(name))(*arguments)
            return (success,) if answer is None else (success, answer)

        return call

    def other(self, name):
        encoded = SimpleNamespace(opaque=list(range(16)))
        return lambda *_: encoded if name.startswith("cuTensorMapEncode") else 0

    def __getitem__(self, prefix):
        """Arguments of the calls whose names begin with `prefix`."""
        return [arguments for name, arguments in self.calls if name.startswith(prefix)]

    def launched(self):
        """(Call, Geometry, Limits, configuration) of the last launch."""
        at, parts = 2 * MAP_BYTES, []
        for kind, dtype in PARTS:
            size = len(kind._fields) * np.dtype(dtype).itemsize
            parts.append(kind(*np.frombuffer(self.blob[at : at + size], dtype).tolist()))
            at += size
        return *parts, self["cuLaunchKernelEx"][-1][0]

    def array(self, address, shape, strides, dtype):
        """The array at an address in allocated memory, or None."""
        if 0 in shape:
            return np.empty(shape, dtype)
        for start, content in self.memory.items():
            if start <= address < start + content.size:
                rest = content[address - start :].view(dtype)
                return np.lib.stride_tricks.as_strided(rest, shape, strides)
        return None

    def _cuLibraryGetKernel(self, library, entry):
        self.entries.append(entry.decode())
        self.kernels.append(getattr(self.compiled, "variant", None))
        return len(self.entries) - 1

    def _cuLaunchKernelEx(self, config, function, parameters, extra):
        where = ctypes.cast(parameters, ctypes.POINTER(ctypes.c_void_p))[0]
        size = sum(len(kind._fields) * np.dtype(dtype).itemsize for kind, dtype in PARTS)
        self.blob = ctypes.string_at(where, 2 * MAP_BYTES + size)
        dtype, v = self.entries[int(function)], self.kernels[int(function)]
        if dtype.startswith(FILTERS):
            self.copy_filters(int(dtype.removeprefix(FILTERS)))
        if isinstance(v, ImageCopy):
            self.copy_images(v)
        if dtype not in self.convolved:
            return
        if isinstance(v, WgradVariant):
            self.sum_splits(numpy_dtype(dtype), v)
        elif isinstance(v, SplitSum):
            self.add_splits(numpy_dtype(dtype), v)
        else:
            self.convolve(numpy_dtype(dtype), v)

    def copy_images(self, v):
        """Write images to y as the kernel would that copies them channels-last."""
        call, g, *_ = self.launched()
        n, channels = call.rows // (call.tiles_n * g.Q * call.row_tiles * g.H), g.C
        kind = f"u{v.itemsize}"
        x = self.array(
            call.x, (n, g.H, g.W, channels), (call.x_n, call.x_h, call.x_w, call.x_c), kind
        )
        shape = n, g.H, g.Q * v.pixels, call.tiles_m * v.unit // v.pixels
        y = self.array(call.y, shape, contiguous_strides(shape, v.itemsize), kind)
        if x is None or y is None:
            return
        y[...] = 0
        columns = np.arange(shape[2]) - g.pad_w
        kept = (columns >= 0) & (columns < g.W)
        y[:, :, kept, :channels] = x[:, :, columns[kept]]

    def sum_splits(self, dtype, v):
        """Write the sums of each split of the pixels, by the CPU; channels are padded. If they are
        biased, those of dy follow.
        """
        call, g, *_ = self.launched()
        shape = call.splits, g.groups * g.K, g.R, g.S, -(-g.C // v.unit) * v.unit
        sums = self.array(call.residual, shape, contiguous_strides(shape, 4), np.float32)
        x_shape, y_shape = (g.N, g.H, g.W, g.groups * g.C), (g.N, g.P, g.Q, g.groups * g.K)
        x = self.array(call.x, x_shape, (call.x_n, call.x_h, call.x_w, call.x_c), dtype)
        dy = self.array(call.y, y_shape, (call.y_n, call.y_p, call.y_q, call.y_k), dtype)
        if x is None or dy is None or sums is None:
            return
        if v.producer == "cp_async":
            assert call.x % v.copy_bytes == call.x_w % v.copy_bytes == 0
            assert call.y % v.copy_bytes == call.y_q % v.copy_bytes == 0
        high = (
            (g.P - 1) * g.stride_h + (g.R - 1) * g.dilation_h + 1 - g.H - g.pad_h,
            (g.Q - 1) * g.stride_w + (g.S - 1) * g.dilation_w + 1 - g.W - g.pad_w,
        )
        pixels = np.arange(call.rows).reshape(g.N, g.P, g.Q, 1) // (call.k_blocks * v.tile_k)
        assert pixels.max() == call.splits - 1
        for split in range(call.splits if v.biased else 0):
            behind = call.residual + call.splits * call.residual_n + 4 * split
            of_dy = self.array(behind, y_shape[3:], (4 * call.splits,), np.float32)
            of_dy[...] = np.where(pixels == split, dy.astype(np.float32), 0).sum((0, 1, 2))
        for split, part in enumerate(sums):
            part[...] = 0
            part[..., : g.C] = conv2d_weight_grad(
                x.astype(np.float32),
                np.where(pixels == split, dy.astype(np.float32), np.float32(0)),
                (g.groups * g.K, g.R, g.S, g.C),
                stride=(g.stride_h, g.stride_w),
                dilation=(g.dilation_h, g.dilation_w),
                padding=((g.pad_h, high[0]), (g.pad_w, high[1])),
                groups=g.groups,
                layout="NHWC",
                weight_layout="KRSC",
                device="cpu",
            )

    def add_splits(self, dtype, v):
        call, g, *_ = self.launched()
        shape = g.groups * g.K, g.R, g.S, g.C
        dw = self.array(call.w, shape, (call.w_k, call.w_r, call.w_s, call.w_c), dtype)
        strides = call.residual_n, call.residual_k, call.residual_p, call.residual_q, 4
        sums = np.zeros((1, *shape), np.float32)
        if call.splits:
            sums = self.array(call.residual, (call.splits, *shape), strides, np.float32)
        if dw is not None and sums is not None:
            dw[...] = sums.sum(0)
        assert bool(call.bias) == v.biased
        db = self.array(call.bias, shape[:1], (dtype.itemsize,), dtype) if v.biased else None
        if db is not None:
            behind, steps = call.residual + call.splits * call.residual_n, (4 * call.splits, 4)
            db[...] = self.array(behind, (shape[0], call.splits), steps, np.float32).sum(1)

    def copy_filters(self, itemsize):
        """Write to y what the kernel that copies a filter for stride phases would."""
        call, g, *_ = self.launched()
        shape = g.groups, g.K, g.C, g.R, g.S
        strides = g.K * call.w_k, call.w_k, call.w_c, call.w_r, call.w_s
        w = self.array(call.w, shape, strides, f"u{itemsize}")
        taps = [
            w[..., r, :][..., s].transpose(0, 2, 3, 4, 1)
            for r in ([*range(a, g.R, g.phases_h)][::-1] for a in range(min(g.phases_h, g.R)))
            for s in ([*range(b, g.S, g.phases_w)][::-1] for b in range(min(g.phases_w, g.S)))
        ]
        y = self.array(call.y, (w.size,), (itemsize,), w.dtype)
        y[:] = np.concatenate([phase.ravel() for phase in taps])

    def convolve(self, dtype, v):
        """Write to y what the kernel of a variant would, by the oracle, with an activation that
        clamps or with none; the variant is None where a kit brings the kernel.
        """
        call, g, limits, _ = self.launched()
        biased, residual = (v.biased, v.residual) if v else (call.bias, call.residual)
        out = numpy_dtype(v.y_dtype) if v else dtype
        if v and not (v.strip or v.band or v.producer == "elements"):
            assert call.x % v.alignment == call.w % v.alignment == 0
        if v and v.packed:
            size = VECTOR_BYTES * v.itemsize // out.itemsize
            assert call.y % VECTOR_BYTES == call.residual % size == 0
        if v and v.folded:  # each element is a column
            g, call = g._replace(C=1, S=g.C), call._replace(w_s=call.w_c)
        channels, filters = g.groups * g.C, g.groups * g.K
        x = self.array(
            call.x,
            (g.N, channels, g.D, g.H, g.W),
            (call.x_n, call.x_c, g.H * call.x_h, call.x_h, call.x_w),
            dtype,
        )
        w = self.array(
            call.w,
            (filters, g.C, g.T, g.R, g.S),
            (call.w_k, call.w_c, g.R * call.w_r, call.w_r, call.w_s),
            dtype,
        )
        y = self.array(
            call.y,
            (g.N, filters, g.Z, g.P, g.Q),
            (call.y_n, call.y_k, g.P * call.y_p, call.y_p, call.y_q),
            out,
        )
        if x is None or w is None or y is None:
            return
        assert bool(v and v.volume) or g.D == g.T == g.Z == 1
        high = (
            (g.Z - 1) * g.stride_d + (g.T - 1) * g.dilation_d + 1 - g.D - g.pad_d,
            (g.P - 1) * g.stride_h + (g.R - 1) * g.dilation_h + 1 - g.H - g.pad_h,
            (g.Q - 1) * g.stride_w + (g.S - 1) * g.dilation_w + 1 - g.W - g.pad_w,
        )
        if g.padding_mode:  # pixels that no window reads are not cropped: others are repeated
            high = tuple(max(0, each) for each in high)
        added = 0
        if residual:
            p = call.residual_p
            strides = call.residual_n, call.residual_k, g.P * p, p, call.residual_q
            added = self.array(call.residual, y.shape, strides, dtype).copy()
        sums = reference.conv(
            x.astype(np.float64),
            w.astype(np.float64),
            stride=(g.stride_d, g.stride_h, g.stride_w),
            dilation=(g.dilation_d, g.dilation_h, g.dilation_w),
            pads=((g.pad_d, high[0]), (g.pad_h, high[1]), (g.pad_w, high[2])),
            groups=g.groups,
            padding_mode=PADDING_MODES[g.padding_mode],
        )
        if v and v.scaled:
            pairs = self.array(
                call.bias, (2, filters, 1, 1, 1), (4, 8, 0, 0, 0), np.dtype("float32")
            )
            sums = sums * pairs[0] + pairs[1]
        elif biased:
            sums += self.array(call.bias, (filters, 1, 1, 1), (x.itemsize, 0, 0, 0), dtype)
        sums = sums + added
        if v and not v.plain:
            assert v.activation == CLAMP
            sums = np.clip(sums, limits.low, limits.high)
        y[...] = sums

    def _cuDeviceGet(self, number):
        return self.real.CUdevice(number)

    def _cuCtxGetDevice(self):
        return self.real.CUdevice(self.contexts[-1])

    def _cuDevicePrimaryCtxRetain(self, device):
        return int(device)

    def _cuCtxSetCurrent(self, context):
        self.contexts[-1:] = [context]

    def _cuCtxPushCurrent(self, context):
        self.contexts.append(context)

    def _cuCtxPopCurrent(self):
        return self.contexts.pop()

    def _cuDeviceGetName(self, length, device):
        return b"recorded\0"

    def _cuDeviceGetAttribute(self, attribute, device):
        major, minor = self.capability
        numbers = {"MAJOR": major, "MINOR": minor, "COUNT": 132, "OPTIN": 227 << 10}
        numbers |= {"RATE": 2_619_000, "WIDTH": 5120}  # of memory: 3.35 TB/s
        return numbers[attribute.name.split("_")[-1]]

    def _cuMemAlloc(self, size):
        address = self.free
        self.free += -(-size // 1024) * 1024
        self.memory[address] = np.full(size, 0xFF, np.uint8)  # poison: NaN in every type
        return self.real.CUdeviceptr(address)

    def _cuMemFree(self, pointer):
        del self.memory[int(pointer)]

    def _cuMemAllocFromPoolAsync(self, size, pool, stream):
        return self._cuMemAlloc(size)

    def _cuMemFreeAsync(self, pointer, stream):
        del self.memory[int(pointer)]

    def _cuMemsetD8Async(self, pointer, value, size, stream):
        self.array(int(pointer), (size,), (1,), np.uint8)[:] = value

    def _cuMemcpyHtoD(self, to, source, size):
        self.memory[int(to)][:size] = np.frombuffer(ctypes.string_at(source, size), np.uint8)

    def _cuMemcpyDtoH(self, to, source, size):
        ctypes.memmove(to, self.memory[int(source)].ctypes.data, size)


@pytest.fixture
def device_array():
    return Device


@pytest.fixture
def recorder(monkeypatch):
    """Replace the driver, and the compiler, which other tests run."""
    reason = "needs numba-cuda and cuda-bindings: pip install '.[cu13]' in a checkout"
    real = pytest.importorskip("cuda.bindings.driver", reason=reason, exc_type=ImportError)
    if importlib.util.find_spec("numba_cuda") is None:
        pytest.skip(reason)
    recorder = Recorder(real)
    monkeypatch.setattr(driver, "bindings", lambda: recorder)

    def cubin(v, cc):
        recorder.variants.append(v)
        recorder.compiled.variant = v  # by this thread
        return b"image", "a copy" if isinstance(v, ImageCopy) else v.dtype

    def filters_cubin(itemsize, cc):
        return b"image", f"{FILTERS}{itemsize}"

    monkeypatch.setattr(load, "cubin", cubin)
    monkeypatch.setattr(load, "filters_cubin", filters_cubin)
    kept = driver.device_arch.cache_clear, driver._primary_context.cache_clear
    loaded = load.loaded.cache_clear, load.loaded_filters.cache_clear, transfer.pool.cache_clear
    forget = *kept, *loaded, cache.clear
    for function in forget:
        function()
    yield recorder
    for function in forget:
        function()


@pytest.fixture
def placed(recorder):
    """A function that makes a device array of an array's values."""

    def place(array, order=None, gap=0, offset=0):
        """Its axes are in memory in `order`, with `gap` elements after each run of the last, from
        `offset` elements on.
        """
        order = order or tuple(range(array.ndim))
        memory = np.pad(array.transpose(order), [(0, 0)] * (array.ndim - 1) + [(0, gap)])
        memory = np.ascontiguousarray(memory)
        start = offset * array.itemsize
        with recorder.lock:
            address = int(recorder._cuMemAlloc(start + memory.nbytes))
        recorder.memory[address][start:] = memory.reshape(-1).view(np.uint8)
        strides = tuple(memory.strides[order.index(axis)] for axis in range(array.ndim))
        return Device(address + start, array.shape, array.dtype, strides)

    return place


@pytest.fixture
def fetched(recorder):
    """A function that gives the values of a device array."""

    def fetch(array):
        given = array.__cuda_array_interface__
        return recorder.array(given["data"][0], given["shape"], given["strides"], given["typestr"])

    return fetch


@pytest.fixture
def on_gpu():
    """A function that makes a tensor claim to be on a GPU."""
    torch = pytest.importorskip("torch")

    class Tensor(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl
        is_cuda, device = True, torch.device("cuda:0")

    Tensor.__module__ = "torch.stub"
    return lambda tensor: tensor.as_subclass(Tensor)


@pytest.fixture
def card(recorder, on_gpu, monkeypatch, tmp_path):
    """A GPU for torch; see `torch_card`."""
    from torch_card import installed

    yield from installed(recorder, on_gpu, monkeypatch, tmp_path)
