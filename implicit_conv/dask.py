"""The door to dask: lazy convolutions and filters of its arrays.

The page "Arrays larger than memory" is the guide.
"""

from implicit_conv.scale.dask import functions as _named

conv1d, conv2d, conv3d = _named("conv1d conv2d conv3d")
conv_transpose1d, conv_transpose2d = _named("conv_transpose1d conv_transpose2d")
(conv_transpose3d,) = _named("conv_transpose3d")
convolve, convolve1d, correlate, correlate1d = _named("convolve convolve1d correlate correlate1d")
gaussian_filter, gaussian_filter1d = _named("gaussian_filter gaussian_filter1d")
gaussian_gradient_magnitude, laplace = _named("gaussian_gradient_magnitude laplace")
gaussian_laplace, prewitt, sobel = _named("gaussian_laplace prewitt sobel")
uniform_filter, uniform_filter1d = _named("uniform_filter uniform_filter1d")
maximum_filter, median_filter = _named("maximum_filter median_filter")
minimum_filter, percentile_filter, rank_filter = _named(
    "minimum_filter percentile_filter rank_filter"
)
