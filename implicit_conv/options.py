"""The words that options are given in, and what follows from them; it imports nothing."""

PRECISIONS = ("strict", "standard", "fast")
ALGORITHMS = (
    "implicit_gemm",
    "pointwise",
    "depthwise",
    "winograd_f2",
    "winograd_f4",
    "winograd_f6",
    "winograd_f2_stride2",
    "gemm_im2col",
)
# Kinds of activations, by their numbers in kernels/activation.py; relu and relu6 are clamps.
ACTIVATIONS = ("clamp", "leaky_relu", "silu", "gelu", "sigmoid", "tanh", "hardswish")
PADDING_NAMES = ("valid", "same", "same_lower", "full", "causal")
# What padding is made of, in the order of the numbers in kernels/geometry.py.
PADDING_MODES = ("zeros", "reflect", "symmetric", "replicate", "circular")
SPACE = {1: "W", 2: "HW", 3: "DHW"}  # the spatial axes of an array, by their number
TAPS = {1: "S", 2: "RS", 3: "TRS"}  # the axes of a filter's taps
# The layouts of x, y and the residual, and of filters, by the number of spatial axes.
LAYOUTS_OF = {rank: (f"NC{space}", f"N{space}C") for rank, space in SPACE.items()}
WEIGHT_LAYOUTS_OF = {rank: (f"KC{taps}", f"K{taps}C", f"{taps}CK") for rank, taps in TAPS.items()}
# The positions of n, h, w, c, and of k, c, r, s, in the layouts with two spatial axes.
LAYOUTS = {layout: tuple(map(layout.index, "NHWC")) for layout in LAYOUTS_OF[2]}
WEIGHT_LAYOUTS = {layout: tuple(map(layout.index, "KCRS")) for layout in WEIGHT_LAYOUTS_OF[2]}
FLOAT_DTYPES = ("float32", "float64", "float16", "bfloat16")
INTEGER_RANGES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}
DTYPES = (*FLOAT_DTYPES, *INTEGER_RANGES)
COMPLEX_PARTS = {"complex64": "float32", "complex128": "float64"}  # dtypes of both parts
GPU_DTYPES = ("float16", "bfloat16", "float32")
ITEMSIZES = {  # bytes of an element
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int8": 1,
    "uint8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "complex64": 8,
    "complex128": 16,
}
