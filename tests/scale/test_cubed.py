"""Convolutions and filters of cubed arrays have the bits of the whole, within its memory."""

import numpy as np
import pytest

cubed = pytest.importorskip("cubed", reason="cubed is not installed: pip install -e '.[cubed]'")

import implicit_conv.cubed  # noqa: E402

CASES = [
    ("conv2d", (6, 4, 5, 3), {"padding": 2}),
    ("conv2d", (6, 4, 4, 6), {"padding": "causal", "stride": (2, 3)}),
    ("conv2d", (6, 2, 4, 4), {"padding": "full", "dilation": 2, "groups": 2}),
    ("conv2d", (6, 4, 19, 3), {"padding": 9, "padding_mode": "reflect"}),
    ("conv2d", (6, 4, 5, 4), {"padding": ((4, 1), (0, 3)), "padding_mode": "circular"}),
    ("conv_transpose2d", (4, 6, 5, 3), {"padding": 1, "stride": (3, 1)}),
    ("conv_transpose2d", (4, 6, 2, 2), {"stride": 3, "output_padding": 2}),
]


@pytest.fixture
def spec(tmp_path):
    return cubed.Spec(work_dir=str(tmp_path), allowed_mem="20MB", reserved_mem="1MB")


@pytest.mark.parametrize(("name", "weight_shape", "options"), CASES, ids=str)
def test_convolutions(spec, name, weight_shape, options):
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 4, 29, 27)).astype(np.float32)
    w = random.standard_normal(weight_shape).astype(np.float32)
    options = {**options, "precision": "strict"}
    whole = getattr(implicit_conv, name)(x, w, **options)
    given = cubed.from_array(x, chunks=(1, 2, 8, 9), spec=spec)
    y = getattr(implicit_conv.cubed, name)(given, w, **options)
    assert y.dtype == whole.dtype
    assert y.shape == whole.shape
    assert y.npartitions > 8
    np.testing.assert_array_equal(y.compute(), whole)


@pytest.mark.parametrize(
    "mode", ["reflect", "mirror", "nearest", "wrap", "constant", "grid-wrap", "grid-constant"]
)
def test_filters_of_images(spec, mode):
    images = pytest.importorskip("scipy.ndimage", reason="scipy is not installed")
    x = np.random.default_rng(0).standard_normal((61, 47))
    given = cubed.from_array(x, chunks=(20, 16), spec=spec)
    y = implicit_conv.cubed.gaussian_filter(given, 1.5, mode=mode)
    np.testing.assert_array_equal(y.compute(), images.gaussian_filter(x, 1.5, mode=mode))


def test_masked_arrays_are_refused_and_cubed_drops_the_masks_of_its_own(spec):
    """If it keeps them some day, tasks are to refuse masked elements."""
    x, w = np.ones((1, 1, 12, 10), np.float32), np.ones((1, 1, 3, 3), np.float32)
    masked = np.ma.masked_array(x, np.eye(12, 10, dtype=bool))
    for function, rest in ((implicit_conv.cubed.conv2d, (w,)), (implicit_conv.cubed.sobel, ())):
        with pytest.raises(TypeError, match=r"is a masked array; .* pass .*\.filled\(0\)"):
            function(masked, *rest)
    given = cubed.from_array(x, chunks=(1, 1, 6, 4), spec=spec)
    with pytest.raises(TypeError, match="w is a masked array"):
        implicit_conv.cubed.conv2d(given, np.ma.masked_array(w))
    mapped = cubed.map_blocks(lambda chunk: np.ma.masked_greater(chunk, 0), given, dtype=x.dtype)
    for own in (cubed.from_array(masked, chunks=(1, 1, 6, 4), spec=spec), mapped):
        assert type(own.compute()) is np.ndarray
        y = implicit_conv.cubed.conv2d(own, w).compute()
        np.testing.assert_array_equal(y, np.full((1, 1, 10, 8), 9))


def test_more_memory_than_a_task_may_take_is_refused(tmp_path):
    small = cubed.Spec(work_dir=str(tmp_path), allowed_mem="300kB", reserved_mem=0)
    x = cubed.from_array(np.ones((1, 1, 256, 256), np.float32), chunks=(1, 1, 128, 128), spec=small)
    w = np.ones((1, 1, 3, 3), np.float32)
    with pytest.raises(ValueError, match="exceeds allowed_mem"):
        implicit_conv.cubed.conv2d(x, w, padding=1).compute()


def test_each_name_of_the_door_is_the_function_of_that_name():
    functions = {name: value for name, value in vars(implicit_conv.cubed).items() if name[0] != "_"}
    assert len(functions) == 19
    assert {name: value.__name__ for name, value in functions.items()} == {
        name: name for name in functions
    }
