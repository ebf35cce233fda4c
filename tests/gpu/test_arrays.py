"""Arrays of other libraries are read in place: interface, DLPack, device, stream."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from implicit_conv.errors import DTypeError, PlanError, ShapeError
from implicit_conv.gpu.cuda.arrays import is_device_array, result_maker, see
from implicit_conv.gpu.cuda.streams import stream_of


class DLPack:
    """A numpy array that claims to be on a GPU."""

    def __init__(self, array, device=(2, 0)):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        assert stream == 1  # the legacy default stream, on which a launch then is
        return self.array.__dlpack__()


class Gradient(DLPack):
    """As a tensor of torch that requires gradients: reading its interface raises."""

    requires_grad = True

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("use detach")


def test_dlpack_arrays_come_in_without_copies():
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, ::2]
    seen = see(DLPack(array, (2, 1))).operand
    assert seen.address == array.ctypes.data
    assert (seen.shape, seen.strides, seen.dtype) == (array.shape, array.strides, "float32")
    assert seen.device == 1
    assert is_device_array(DLPack(array)) and not is_device_array(array)
    assert not is_device_array([1, 2])


def test_cuda_array_interface_with_and_without_strides(device_array):
    packed = see(device_array(512, (2, 3), np.float32)).operand
    assert packed.strides == (12, 4) and packed.device is None
    assert see(device_array(512, (2, 3), np.float32, (4, 8))).operand.strides == (4, 8)
    assert stream_of(see(device_array(512, (2, 3)))) == 77


def test_bfloat16_by_the_name_that_torch_gives_it(device_array):
    array = device_array(512, (2, 3))
    array.__cuda_array_interface__["typestr"] = "<V2"
    assert see(array).operand.dtype == "bfloat16"


def test_wrong_arrays_are_named(device_array):
    with pytest.raises(DTypeError, match="ndarray is no device array"):
        see(np.zeros(3))
    with pytest.raises(DTypeError, match=r"x is .* DLPack type \(2, 64 bits, 1 lanes\)"):
        see(DLPack(np.zeros(3)))
    with pytest.raises(DTypeError, match="type <i4 are not supported on the GPU"):
        see(device_array(512, (3,), np.int32))
    x = see(device_array(512, (2, 3))).operand
    with pytest.raises(ShapeError, match=r"x has shape \(2, 3\), but the plan is for \(2, 4\)"):
        x.expect("x", (2, 4), "float16")
    with pytest.raises(DTypeError, match="x is float16, but the plan is for bfloat16"):
        x.expect("x", (2, 3), "bfloat16")


def test_a_tensor_with_gradients_says_what_to_do():
    with pytest.raises(PlanError, match=r"pass x.detach\(\)"):
        see(Gradient(np.zeros(3, np.float32)))


@pytest.mark.parametrize(
    ("shape", "strides", "reach"),
    [((2, 3), (4, 8), (0, 4 + 16 + 2)), ((2, 3), (-4, 2), (-4, 6)), ((2, 0), (4, 8), (0, 0))],
)
def test_reach_is_the_first_byte_to_the_last(device_array, shape, strides, reach):
    assert see(device_array(512, shape, np.float16, strides)).operand.reach == reach


def test_tensors_are_read_by_their_own_attributes(on_gpu):
    torch = pytest.importorskip("torch")
    tensor = on_gpu(torch.zeros(2, 3, 4, dtype=torch.bfloat16).permute(0, 2, 1))
    seen = see(tensor).operand
    assert (seen.address, seen.shape, seen.strides) == (tensor.data_ptr(), (2, 4, 3), (24, 2, 8))
    assert (seen.dtype, seen.device, seen.owner is tensor) == ("bfloat16", 0, True)
    with pytest.raises(DTypeError, match="tensor of int8 is not supported"):
        assert see(on_gpu(torch.zeros(2, dtype=torch.int8))).operand
    with pytest.raises(DTypeError, match="Tensor is no device array"):
        see(torch.zeros(2))
    negative = torch.complex(torch.zeros(2), torch.ones(2)).conj().imag
    with pytest.raises(PlanError, match=r"w has the opposite sign .* pass w.resolve_neg\(\)"):
        see(on_gpu(negative), "w")
    assert see(on_gpu(negative.resolve_neg())).operand.dtype == "float32"
    freed = torch.zeros(2)
    freed.untyped_storage().resize_(0)
    with pytest.raises(PlanError, match="a Tensor has no memory"):
        see(on_gpu(freed))
    weight = on_gpu(torch.zeros(2)).requires_grad_()
    with pytest.raises(PlanError, match=r"w requires gradients.* pass w.detach\(\)"):
        see(weight, "w")
    with torch.no_grad():
        assert see(weight).address == weight.data_ptr()


@pytest.mark.parametrize("raw", [True, False])
def test_the_stream_is_the_one_that_torch_works_on(monkeypatch, on_gpu, raw):
    torch = pytest.importorskip("torch")
    if raw:
        monkeypatch.setattr(
            torch._C, "_cuda_getCurrentRawStream", lambda device: 5 + device, raising=False
        )
    elif hasattr(torch._C, "_cuda_getCurrentRawStream"):
        pytest.skip("a build for GPUs")
    current = SimpleNamespace(cuda_stream=5)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)
    assert stream_of(see(on_gpu(torch.zeros(2)))) == 5


def library(monkeypatch, package, **functions):
    """A class of arrays of a package, whose module `cuda` and itself have these functions."""
    module = SimpleNamespace(cuda=SimpleNamespace(**functions), **functions)
    monkeypatch.setitem(sys.modules, package, module)
    interface = {"data": (512, False), "shape": (2, 3), "typestr": "<f2", "stream": 9}
    body = {"__module__": f"{package}.core", "__cuda_array_interface__": interface, "stream": 9}
    return type("Array", (), body)()


def test_the_kind_of_an_array_says_its_library():
    """Which decides whether a filter is copied in another order."""
    kinds = [type("Array", (DLPack,), {"__module__": name}) for name in ("cupy.core", "others")]
    first, second = (see(kind(np.zeros((2, 3), np.float32))).kind for kind in kinds)
    assert first[:4] == second[:4] and first != second


def test_the_stream_of_cupy_is_its_current_one(monkeypatch):
    array = library(monkeypatch, "cupy", get_current_stream=lambda: SimpleNamespace(ptr=6))
    assert stream_of(see(array)) == 6


def test_results_are_made_by_the_library_in_the_order_of_memory(monkeypatch, on_gpu):
    """torch and numba are told strides; numba cannot transpose four axes. Numba's is of a stream,
    which whoever reads the result then waits for.
    """
    torch, made = pytest.importorskip("torch"), []

    def strided(*sizes, **options):
        made.append((*sizes, options))

    monkeypatch.setattr(torch, "empty_strided", strided)
    monkeypatch.setattr(torch, "float16", torch.float16)
    sizes = (2, 3, 4, 5), (0, 3, 1, 2), "float16"
    x = on_gpu(torch.zeros(2))
    result_maker(x, *sizes)(x)
    place = {"dtype": torch.float16, "device": x.device}
    assert made.pop() == ((2, 5, 3, 4), (60, 1, 20, 5), place)
    x = library(monkeypatch, "numba", device_array=strided)
    result_maker(x, *sizes)(x)
    assert made.pop() == ((2, 5, 3, 4), "float16", (120, 2, 40, 10), {"stream": 9})
    x = library(monkeypatch, "cupy", empty=np.empty)
    assert result_maker(x, *sizes)(x).strides == (120, 2, 40, 10)
