"""The methods of input gradients that compute all stride phases at once; see `engines.gradients`.
Few calls need them, so the planner does not import them.
"""

from implicit_conv.cpu.candidates.candidate import Method
from implicit_conv.cpu.methods.strided_depthwise import StridedDepthwise

INPUT_GRADIENTS: tuple[type[Method], ...] = (StridedDepthwise,)
