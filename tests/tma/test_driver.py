"""The linter agrees with the CUDA driver on generated tensor maps."""

import ctypes
import random

import pytest

from implicit_conv import tma
from implicit_conv.tma.maps.driver import DATA_TYPES, ENUMS, PREFIX

pytestmark = pytest.mark.gpu
INVALID_VALUE = 1
ORDER = (
    "tensorDataType",
    "tensorRank",
    "globalAddress",
    "globalDim",
    "globalStrides",
    "pixelBoxLowerCorner",
    "pixelBoxUpperCorner",
    "channelsPerPixel",
    "pixelsPerColumn",
    "elementStrides",
    "interleave",
    "swizzle",
    "l2Promotion",
    "oobFill",
)
TYPES = {
    "globalDim": ctypes.c_uint64,
    "globalStrides": ctypes.c_uint64,
    "elementStrides": ctypes.c_uint32,
}


@pytest.fixture(scope="module")
def driver():
    """The CUDA driver; the test is skipped without a device."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        pytest.skip("no CUDA driver here")
    count = ctypes.c_int(0)
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)) or not count.value:
        pytest.skip("no CUDA device here")
    return cuda


def number(name, value):
    """The number of a value of an enumeration."""
    if name == "tensorDataType":
        return DATA_TYPES[value.removeprefix(f"{PREFIX}DATA_TYPE_")][0]
    infix, names = ENUMS[name]
    return list(names.values()).index(value.removeprefix(PREFIX + infix))


def encode(cuda, arguments):
    """The result of cuTensorMapEncodeIm2col for these arguments."""
    room = ctypes.create_string_buffer(192)
    aligned = (ctypes.addressof(room) + 63) // 64 * 64
    values = [ctypes.c_void_p(aligned)]
    for name in ORDER:
        value = arguments[name]
        if name == "globalAddress":
            values.append(ctypes.c_void_p(value))
        elif isinstance(value, tuple):
            values.append((TYPES.get(name, ctypes.c_int) * len(value))(*value))
        elif name in ENUMS or name == "tensorDataType":
            values.append(ctypes.c_int(number(name, value)))
        else:
            values.append(ctypes.c_uint32(value))
    return cuda.cuTensorMapEncodeIm2col(*values)


def generated(rng):
    """Arguments near the limits of the rules; some break them."""
    rank = rng.choice([3, 4, 5])
    bits = {3: 16, 4: 8, 5: 5}[rank]
    edge = 1 << (bits - 1)
    spatial = rank - 2
    map = tma.Im2colMap(
        shape=(2, *[rng.randint(16, 40) for _ in range(spatial)], 64),
        dtype=rng.choice(["uint8", "float16", "float32"]),
        lower_corner=[0] * spatial,
        upper_corner=[0] * spatial,
        traversal_stride=1,
        pixels_per_column=64,
        channels_per_pixel=16,
        address=1 << 20,
    )
    arguments = map.arguments
    changes = {
        "pixelBoxLowerCorner": (rng.choice([-edge, -edge - 1, -1, 5]),) + (0,) * (spatial - 1),
        "pixelBoxUpperCorner": (rng.choice([edge - 1, edge, -1, -50]),) + (0,) * (spatial - 1),
        "pixelsPerColumn": rng.choice([0, 1, 1024, 1025]),
        "channelsPerPixel": rng.choice([0, 8, 16, 24, 256, 272]),
        "elementStrides": (1, rng.choice([0, 1, 8, 9]), *(1,) * (rank - 2)),
        "globalAddress": (1 << 20) + rng.choice([0, 8, 16]),
        "swizzle": PREFIX + rng.choice(["SWIZZLE_32B", "SWIZZLE_128B"]),
        "oobFill": PREFIX + "FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA",
    }
    name = rng.choice([*changes, None])
    return {**arguments, name: changes[name]} if name else arguments


def test_linter_and_driver_agree(driver):
    rng = random.Random(5)
    disagreements = []
    for _ in range(2000):
        arguments = generated(rng)
        arguments.pop("function")
        errors = [f for f in tma.lint(arguments) if f.severity == "error"]
        answer = encode(driver, arguments)
        assert answer in (0, INVALID_VALUE)
        if bool(errors) != bool(answer):
            disagreements.append((answer, arguments, errors))
    assert not disagreements, disagreements[:3]
