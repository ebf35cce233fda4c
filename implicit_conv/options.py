"""The words that options are given in, and what follows from them; it imports nothing."""

PRECISIONS = ("strict", "standard", "fast")
ALGORITHMS = (
    "implicit_gemm",
    "pointwise",
    "depthwise",
    "winograd_f2",
    "winograd_f4",
    "winograd_f2_stride2",
    "gemm_im2col",
)
PADDING_NAMES = ("valid", "same", "same_lower", "full", "causal")
LAYOUTS = {"NCHW": (0, 2, 3, 1), "NHWC": (0, 1, 2, 3)}  # positions of n, h, w, c
WEIGHT_LAYOUTS = {"KCRS": (0, 1, 2, 3), "KRSC": (0, 3, 1, 2), "RSCK": (3, 2, 0, 1)}  # of k, c, r, s
DTYPES = ("float32", "float64", "float16", "bfloat16")
GPU_DTYPES = ("float16", "bfloat16", "float32")
ITEMSIZES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}  # bytes of an element
