"""What type checkers know of the filters, which are made on first use from those of scipy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

from numpy.typing import ArrayLike, DTypeLike

from implicit_conv.arrays.arrays import Array
from implicit_conv.problem.options import Precision

Mode: TypeAlias = Literal[
    "reflect", "constant", "nearest", "mirror", "wrap", "grid-constant", "grid-mirror", "grid-wrap"
]
Modes: TypeAlias = Mode | Sequence[Mode]  # of all axes, or one for each
Ints: TypeAlias = int | Sequence[int]
Floats: TypeAlias = float | Sequence[float]
Output: TypeAlias = Array | DTypeLike | None


class Options(TypedDict, total=False):
    """The options that are not scipy's; the package describes them."""

    precision: Precision
    channel_axis: int | None
    rounding: Literal["scipy", "nearest"]
    nan: Literal["propagate", "interpolate", "ignore"]
    preserve_nan: bool


class AxesOptions(Options, total=False):
    """Those of filters of several axes: `axes` is scipy's, of scipy 1.15 and newer."""

    axes: Ints | None


class Axes(TypedDict, total=False):
    """What filters that order elements may have besides: `axes` is of scipy 1.15 and newer."""

    axes: Ints | None


class GaussianOptions(AxesOptions, total=False):
    """Those of filters that are made of Gaussian ones."""

    truncate: float
    radius: Ints | None


if TYPE_CHECKING:  # functions without bodies
    from typing_extensions import Unpack

    def convolve(
        input: ArrayLike,
        weights: ArrayLike,
        output: Output = None,
        mode: Modes = "reflect",
        cval: float = 0.0,
        origin: Ints = 0,
        **options: Unpack[AxesOptions],
    ) -> Array:
        """See scipy.ndimage."""

    def convolve1d(
        input: ArrayLike,
        weights: ArrayLike,
        axis: int = -1,
        output: Output = None,
        mode: Mode = "reflect",
        cval: float = 0.0,
        origin: int = 0,
        **options: Unpack[Options],
    ) -> Array:
        """See scipy.ndimage."""

    correlate, correlate1d = convolve, convolve1d

    def gaussian_filter(
        input: ArrayLike,
        sigma: Floats,
        order: Ints = 0,
        output: Output = None,
        mode: Modes = "reflect",
        cval: float = 0.0,
        truncate: float = 4.0,
        *,
        radius: Ints | None = None,
        **options: Unpack[AxesOptions],
    ) -> Array:
        """See scipy.ndimage."""

    def gaussian_filter1d(
        input: ArrayLike,
        sigma: float,
        axis: int = -1,
        order: int = 0,
        output: Output = None,
        mode: Mode = "reflect",
        cval: float = 0.0,
        truncate: float = 4.0,
        *,
        radius: int | None = None,
        **options: Unpack[Options],
    ) -> Array:
        """See scipy.ndimage."""

    def gaussian_gradient_magnitude(
        input: ArrayLike,
        sigma: Floats,
        output: Output = None,
        mode: Modes = "reflect",
        cval: float = 0.0,
        **options: Unpack[GaussianOptions],
    ) -> Array:
        """See scipy.ndimage."""

    gaussian_laplace = gaussian_gradient_magnitude

    def generic_gradient_magnitude(
        input: ArrayLike,
        derivative: Callable[..., object],
        output: Output = None,
        mode: Modes = "reflect",
        cval: float = 0.0,
        extra_arguments: Sequence[object] = (),
        extra_keywords: Mapping[str, object] | None = None,
        **options: Unpack[AxesOptions],
    ) -> Array:
        """See scipy.ndimage."""

    def generic_laplace(
        input: ArrayLike,
        derivative2: Callable[..., object],
        output: Output = None,
        mode: Modes = "reflect",
        cval: float = 0.0,
        extra_arguments: Sequence[object] = (),
        extra_keywords: Mapping[str, object] | None = None,
        **options: Unpack[AxesOptions],
    ) -> Array:
        """See scipy.ndimage."""

    def laplace(
        input: ArrayLike,
        output: Output = None,
        mode: Modes = "reflect",
        cval: float = 0.0,
        **options: Unpack[AxesOptions],
    ) -> Array:
        """See scipy.ndimage."""

    def sobel(
        input: ArrayLike,
        axis: int = -1,
        output: Output = None,
        mode: Modes = "reflect",
        cval: float = 0.0,
        **options: Unpack[Options],
    ) -> Array:
        """See scipy.ndimage."""

    prewitt = sobel

    def uniform_filter(
        input: ArrayLike,
        size: Ints = 3,
        output: Output = None,
        mode: Modes = "reflect",
        cval: float = 0.0,
        origin: Ints = 0,
        **options: Unpack[AxesOptions],
    ) -> Array:
        """See scipy.ndimage."""

    def uniform_filter1d(
        input: ArrayLike,
        size: int,
        axis: int = -1,
        output: Output = None,
        mode: Mode = "reflect",
        cval: float = 0.0,
        origin: int = 0,
        **options: Unpack[Options],
    ) -> Array:
        """See scipy.ndimage."""

    def median_filter(
        input: ArrayLike,
        size: Ints | None = None,
        footprint: ArrayLike | None = None,
        output: Output = None,
        mode: Modes = "reflect",
        cval: float = 0.0,
        origin: Ints = 0,
        **options: Unpack[Axes],
    ) -> Array:
        """See scipy.ndimage."""

    minimum_filter = maximum_filter = median_filter

    def rank_filter(
        input: ArrayLike,
        rank: int,
        size: Ints | None = None,
        footprint: ArrayLike | None = None,
        output: Output = None,
        mode: Modes = "reflect",
        cval: float = 0.0,
        origin: Ints = 0,
        **options: Unpack[Axes],
    ) -> Array:
        """See scipy.ndimage."""

    def percentile_filter(
        input: ArrayLike,
        percentile: float,
        size: Ints | None = None,
        footprint: ArrayLike | None = None,
        output: Output = None,
        mode: Modes = "reflect",
        cval: float = 0.0,
        origin: Ints = 0,
        **options: Unpack[Axes],
    ) -> Array:
        """See scipy.ndimage."""

    def minimum_filter1d(
        input: ArrayLike,
        size: int,
        axis: int = -1,
        output: Output = None,
        mode: Mode = "reflect",
        cval: float = 0.0,
        origin: int = 0,
    ) -> Array:
        """See scipy.ndimage."""

    maximum_filter1d = minimum_filter1d

    def grey_erosion(
        input: ArrayLike,
        size: Ints | None = None,
        footprint: ArrayLike | None = None,
        structure: ArrayLike | None = None,
        output: Output = None,
        mode: Modes = "reflect",
        cval: float = 0.0,
        origin: Ints = 0,
        **options: Unpack[Axes],
    ) -> Array:
        """See scipy.ndimage."""

    grey_dilation, grey_opening, grey_closing = grey_erosion, grey_erosion, grey_erosion
    morphological_gradient, morphological_laplace = grey_erosion, grey_erosion
    white_tophat, black_tophat = grey_erosion, grey_erosion
