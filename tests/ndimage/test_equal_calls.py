"""Equal calls have equal bits, the first one too, in each precision and through each door."""

import numpy as np
import pytest

scipy = pytest.importorskip("scipy.ndimage", reason="pip install '.[ndimage]'")

from implicit_conv import ndimage  # noqa: E402
from implicit_conv.ndimage.calls import CHAINS  # noqa: E402
from implicit_conv.process.cache import IMAGES  # noqa: E402

WEIGHTS = np.random.default_rng(1).standard_normal(5)
ARGUMENTS = {
    **dict.fromkeys(("convolve1d", "correlate1d"), (WEIGHTS,)),
    **dict.fromkeys(("convolve", "correlate"), (np.outer(WEIGHTS[:3], WEIGHTS),)),
    **dict.fromkeys(("gaussian_filter", "gaussian_filter1d"), (1.3,)),
    **dict.fromkeys(("uniform_filter", "uniform_filter1d"), (6,)),
    **dict.fromkeys(("laplace", "prewitt", "sobel"), ()),
}
SMALL, LARGE = (37, 41), (260, 270)  # around the sizes of which scipy's code may take the first


def frame(shape, dtype):
    return (np.random.default_rng(0).random(shape) * 200).astype(dtype)


def bits_of_calls(call):
    """The results of three calls, of which the first finds nothing prepared."""
    IMAGES.clear()
    return [call().tobytes() for _ in range(3)]


@pytest.mark.parametrize("precision", ["strict", "standard", "fast"])
@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize("name", CHAINS)
def test_the_first_call_has_the_bits_of_the_next(name, shape, precision):
    call = getattr(ndimage, name)
    for dtype in ("float32", "uint8", "float64"):
        x = frame(shape, dtype)
        for options in ({}, {"rounding": "nearest", "output": np.uint8}, {"output": np.float32}):
            first, *others = bits_of_calls(
                lambda: call(x, *ARGUMENTS[name], precision=precision, **options)  # noqa: B023
            )
            assert others == [first, first], (dtype, options)


@pytest.mark.parametrize("name", ["laplace", "sobel", "uniform_filter", "gaussian_laplace"])
def test_the_first_call_of_channels_of_patched_scipy_and_of_blocks(name):
    pytest.importorskip("dask", reason="pip install '.[dask]'")
    import dask.array as da

    import implicit_conv.dask

    x, args = frame(SMALL, "float32"), ARGUMENTS.get(name, (1.3,))
    pixels, blocks = np.stack([x] * 3, -1), da.from_array(x, chunks=-1)
    with ndimage.patch("standard"):
        patched = bits_of_calls(lambda: getattr(scipy, name)(x, *args))
    of_channels = bits_of_calls(
        lambda: getattr(ndimage, name)(pixels, *args, channel_axis=-1, precision="standard")
    )
    door = getattr(implicit_conv.dask, name)
    of_blocks = bits_of_calls(
        lambda: door(blocks, *args, precision="standard").compute(scheduler="sync")
    )
    for first, *others in (patched, of_channels, of_blocks):
        assert others == [first, first]
    assert patched == of_blocks
