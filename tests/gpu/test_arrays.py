"""Arrays of other libraries are read in place: interface, DLPack, device, stream."""

from types import SimpleNamespace

import numpy as np
import pytest

from implicit_conv.errors import DTypeError, PlanError, ShapeError
from implicit_conv.gpu.cuda.arrays import _from_torch, current_stream, is_device_array, operand


class DLPack:
    """A numpy array that claims to be on a GPU."""

    def __init__(self, array, device=(2, 0)):
        self.array, self.device = array, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        assert stream == -1
        return self.array.__dlpack__()


class Gradient(DLPack):
    """As a tensor of torch that requires gradients: reading its interface raises."""

    requires_grad = True

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("use detach")


def test_dlpack_arrays_come_in_without_copies():
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, ::2]
    seen = operand(DLPack(array, (2, 1)))
    assert seen.address == array.ctypes.data
    assert (seen.shape, seen.strides, seen.dtype) == (array.shape, array.strides, "float32")
    assert seen.device == 1
    assert is_device_array(DLPack(array)) and not is_device_array(array)
    assert not is_device_array([1, 2])


def test_cuda_array_interface_with_and_without_strides(device_array):
    packed = operand(device_array(512, (2, 3), np.float32))
    assert packed.strides == (12, 4) and packed.device is None
    assert operand(device_array(512, (2, 3), np.float32, (4, 8))).strides == (4, 8)
    assert current_stream(device_array(512, (2, 3))) == 77


def test_bfloat16_by_the_name_that_torch_gives_it(device_array):
    array = device_array(512, (2, 3))
    array.__cuda_array_interface__["typestr"] = "<V2"
    assert operand(array).dtype == "bfloat16"


def test_wrong_arrays_are_named(device_array):
    with pytest.raises(DTypeError, match="ndarray is no device array"):
        operand(np.zeros(3))
    with pytest.raises(DTypeError, match=r"x is .* DLPack type \(2, 64 bits, 1 lanes\)"):
        operand(DLPack(np.zeros(3)))
    with pytest.raises(DTypeError, match="type <i4 are not supported on the GPU"):
        operand(device_array(512, (3,), np.int32))
    x = operand(device_array(512, (2, 3)))
    with pytest.raises(ShapeError, match=r"x has shape \(2, 3\), but the plan is for \(2, 4\)"):
        x.expect("x", (2, 4), "float16")
    with pytest.raises(DTypeError, match="x is float16, but the plan is for bfloat16"):
        x.expect("x", (2, 3), "bfloat16")


def test_a_tensor_with_gradients_says_what_to_do():
    with pytest.raises(PlanError, match=r"pass x.detach\(\)"):
        operand(Gradient(np.zeros(3, np.float32)))


@pytest.mark.parametrize(
    ("shape", "strides", "reach"),
    [((2, 3), (4, 8), (0, 4 + 16 + 2)), ((2, 3), (-4, 2), (-4, 6)), ((2, 0), (4, 8), (0, 0))],
)
def test_reach_is_the_first_byte_to_the_last(device_array, shape, strides, reach):
    assert operand(device_array(512, shape, np.float16, strides)).reach == reach


def test_tensors_are_read_by_their_own_attributes():
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(2, 3, 4, dtype=torch.bfloat16).permute(0, 2, 1)
    seen = _from_torch(tensor)
    assert (seen.address, seen.shape, seen.strides) == (tensor.data_ptr(), (2, 4, 3), (24, 2, 8))
    assert (seen.dtype, seen.owner is tensor) == ("bfloat16", True)
    with pytest.raises(DTypeError, match="tensor of int8 is not supported"):
        _from_torch(torch.zeros(2, dtype=torch.int8))
    with pytest.raises(DTypeError, match="Tensor is no device array"):
        operand(tensor)
    negative = torch.complex(torch.zeros(2), torch.ones(2)).conj().imag
    with pytest.raises(PlanError, match=r"w has the opposite sign .* pass w.resolve_neg\(\)"):
        _from_torch(negative, "w")
    assert _from_torch(negative.resolve_neg()).dtype == "float32"


@pytest.mark.parametrize("package", ["torch", "cupy"])
def test_the_stream_is_the_one_the_library_works_on(monkeypatch, package):
    import sys

    streams = SimpleNamespace(
        current_stream=lambda device: SimpleNamespace(cuda_stream=5 + device),
        get_current_stream=lambda: SimpleNamespace(ptr=6),
    )
    monkeypatch.setitem(sys.modules, package, SimpleNamespace(cuda=streams))
    kind = type("Tensor", (), {"device": 1, "__module__": f"{package}.core"})
    assert current_stream(kind()) == 6
