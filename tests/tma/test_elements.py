"""Element types by name, with and without ml_dtypes."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from implicit_conv import tma

BOX = {"lower_corner": (0, 0), "upper_corner": (0, 0), "pixels_per_column": 4}


def square(dtype):
    return tma.Im2colMap(shape=(1, 2, 2, 32), dtype=dtype, channels_per_pixel=32, **BOX)


DRIVER = {
    "bfloat16": "BFLOAT16",
    "tfloat32": "TFLOAT32",
    "float32_ftz": "FLOAT32_FTZ",
    "float8_e4m3fn": "UINT8",
    "int16": "UINT16",
    "float16": "FLOAT16",
}


@pytest.mark.parametrize("name", DRIVER)
def test_the_drivers_type(name):
    map = square(name)
    assert map.element == name
    assert map.arguments["tensorDataType"] == f"CU_TENSOR_MAP_DATA_TYPE_{DRIVER[name]}"
    assert replace(map, address=4096).element == name
    assert tma.lint(shape=(1, 2, 2, 32), dtype=name, channels_per_pixel=32, **BOX) == []


def test_bfloat16_needs_no_ml_dtypes(monkeypatch):
    theirs = square("bfloat16")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    ours = square("bfloat16")
    assert ours.element == "bfloat16" and ours.arguments == theirs.arguments
    bits = np.arange(128, dtype="uint16").reshape(ours.shape)
    rows = tma.load(ours, bits, (0, 0, 0, 0))
    assert rows.view("uint16").ravel().tolist() == list(range(128))
    nan = replace(ours, oob_fill="nan")
    assert tma.load(nan, bits, (1, 0, 0, 0)).view("uint16")[0, 0] == 0x7FF7


def test_types_are_told_apart():
    assert square("float32") != square("tfloat32")
    with pytest.raises(
        TypeError, match="dtype 'bfloat15' is unknown; name a numpy dtype or one of"
    ):
        square("bfloat15")


def test_encoding_says_what_is_missing():
    with pytest.raises(ValueError, match="pass address="):
        square("float16").encode()
    with pytest.raises(tma.TensorMapError, match="multiple of 16 bytes"):
        square("float16").encode(address=8)


def test_a_map_writes_its_instruction():
    text = square("float16").ptx((0, 1, 0, 8), (0, 1), dst="%r1")
    assert text.endswith(
        ".im2col.mbarrier::complete_tx::bytes [%r1], [map, {8, 0, 1, 0}], [mbar], {1, 0};"
    )
    with pytest.raises(tma.TensorMapError, match=r"coords\[h\] = 5"):
        square("float16").ptx((0, 5, 0, 0))
