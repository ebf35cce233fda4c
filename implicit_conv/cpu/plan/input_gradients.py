"""The methods of input gradients that compute all stride phases at once, and those of products that
are then folded; see `engines.dgrad`. Few calls need them, so the planner does not import them.
"""

from implicit_conv.cpu.candidates.candidate import Method
from implicit_conv.cpu.methods.gemm import Gemm
from implicit_conv.cpu.methods.strided_depthwise import StridedDepthwise

INPUT_GRADIENTS: tuple[type[Method], ...] = (StridedDepthwise,)
PRODUCTS: tuple[type[Method], ...] = (Gemm,)  # which stores rows of filters, for any strides of x
