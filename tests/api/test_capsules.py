"""DLPack capsules that this package reads itself, those of bfloat16: of both forms, and hostile."""

import ctypes

import ml_dtypes
import numpy as np
import pytest

from implicit_conv import conv2d
from implicit_conv.errors import DTypeError, PlanError, ShapeError

W = np.ones((2, 3, 3, 3), ml_dtypes.bfloat16)
SHAPE = (1, 3, 9, 9)
NEW = ctypes.pythonapi.PyCapsule_New
NEW.restype, NEW.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
INTEGERS = ctypes.POINTER(ctypes.c_int64)


class Capsule(ctypes.Structure):
    """The members of dlpack.h: a version and flags, then the tensor of either form."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("major", "minor")),
        *((name, ctypes.c_void_p) for name in ("manager", "deleter")),
        ("flags", ctypes.c_uint64),
        ("data", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("device", "number", "ndim")),
        *((name, ctypes.c_uint8) for name in ("code", "bits")),
        ("lanes", ctypes.c_uint16),
        *((name, INTEGERS) for name in ("shape", "strides")),
        ("offset", ctypes.c_uint64),
    )


class Exporter:
    """Exports an array of ones by a capsule whose members may be changed."""

    def __init__(self, name=b"dltensor", shape=SHAPE, strides=None, **members):
        self.name, self.data = name, np.ones(1000, ml_dtypes.bfloat16)
        self.numbers = [(ctypes.c_int64 * len(n))(*n) for n in (shape, strides or ())]
        sizes, steps = (ctypes.cast(numbers, INTEGERS) for numbers in self.numbers)
        self.capsule = Capsule(
            **{
                "major": 1,
                "data": self.data.ctypes.data,
                "device": 1,
                "ndim": len(shape),
                "code": 4,
                "bits": 16,
                "lanes": 1,
                "shape": sizes,
                "strides": steps if strides else None,
                **members,
            }
        )

    def __dlpack_device__(self):
        return self.capsule.device, 0

    def __dlpack__(self, **_):
        start = 0 if b"versioned" in self.name else Capsule.data.offset
        return NEW(ctypes.addressof(self.capsule) + start, self.name, None)


class Raising(Exporter):
    """Its library raises an error of its own."""

    def __dlpack__(self, **_):
        raise KeyError("internal")


class Numbered(Exporter):
    """Its library returns a number instead of a capsule."""

    def __dlpack__(self, **options):
        if options:  # numpy asks with options, and looks no further
            raise BufferError
        return 3


class Named(Exporter):
    """Its device is a text."""

    def __dlpack_device__(self):
        return "cpu"


@pytest.mark.parametrize("name", [b"dltensor", b"dltensor_versioned"])
def test_both_forms(name):
    y = conv2d(Exporter(name), W)
    assert y.shape == (1, 2, 7, 7) and (y.astype(float) == 27).all()
    y = conv2d(Exporter(name, strides=(0, 0, 0, 0)), W)
    assert (y.astype(float) == 27).all()
    assert conv2d(Exporter(name, shape=(0, 3, 9, 9), data=None), W).shape == (0, 2, 7, 7)


def test_a_versioned_capsule_of_torch():
    torch = pytest.importorskip("torch")
    x = torch.arange(243).reshape(SHAPE).to(torch.bfloat16)[..., ::2]

    class Tensor:
        def __dlpack_device__(self):
            return x.__dlpack_device__()

        def __dlpack__(self, **_):
            return x.__dlpack__(max_version=(1, 0))

    y = conv2d(Tensor(), W)
    expected = conv2d(x.float().numpy().astype(ml_dtypes.bfloat16), W)
    assert "dltensor_versioned" in repr(x.__dlpack__(max_version=(1, 0)))
    assert y.dtype == expected.dtype and (y == expected).all()


HOSTILE = [  # (the array, the error, its words)
    (Exporter(ndim=-1), ShapeError, "has -1 axes and a shape"),
    (Exporter(ndim=65), ShapeError, "has 65 axes and a shape"),
    (Exporter(ndim=2**31 - 1), ShapeError, "has 2147483647 axes"),
    (Exporter(shape=(1, 3, -9, 9)), ShapeError, r"has shape \(1, 3, -9, 9\), byte strides"),
    (Exporter(shape=(0, 3, -9, 9)), ShapeError, r"has shape \(0, 3, -9, 9\), byte strides"),
    (Exporter(shape=(1, 3, 2**62, 9)), ShapeError, "which no memory holds"),
    (Exporter(shape=(1, 3, 2**62, 9), strides=(0,) * 4), ShapeError, "which no memory holds"),
    (Exporter(strides=(2**62, 2**62, 9, 1)), ShapeError, "which no memory holds"),
    (Exporter(strides=(-(2**62), -(2**62), 9, 1)), ShapeError, "which no memory holds"),
    (Exporter(strides=(2**63 - 1, 1, 1, 1)), ShapeError, "which no memory holds"),
    (Exporter(shape=()), ShapeError, "x"),  # as of any array without axes
    (Exporter(**{"shape": SHAPE, "data": None}), ShapeError, "address 0x0, which no memory"),
    (Exporter(data=2**64 - 2), ShapeError, "which no memory holds"),
    (Exporter(offset=2**64 - 1), ShapeError, "which no memory holds"),
    (Exporter(b"used_dltensor"), DTypeError, "does not export its memory"),
    (Exporter(b"dltensor_versioned", major=2), DTypeError, "of DLPack 2.0, but only version 1"),
    (Exporter(lanes=2), DTypeError, r"of DLPack type \(4, 16 bits, 2 lanes\)"),
    (Exporter(code=9), DTypeError, r"of DLPack type \(9, 16 bits, 1 lanes\)"),
    (Exporter(device=99), PlanError, "on another device than x, or on one that is not supported"),
    (Raising(), DTypeError, r"does not export its memory \(KeyError: 'internal'\); pass a numpy"),
    (Numbered(), DTypeError, "whose __dlpack__ returns 3, which is no capsule dltensor or"),
    (Named(), PlanError, "on one that is not supported"),
]


@pytest.mark.parametrize(("x", "error", "words"), HOSTILE)
def test_hostile_capsules(x, error, words):
    with pytest.raises(error, match=f"^x .*{words}"):
        conv2d(x, W)
