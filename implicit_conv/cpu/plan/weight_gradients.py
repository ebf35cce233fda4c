"""The methods of weight gradients: a module that a convolution need not import."""

from implicit_conv.cpu.candidates.candidate import Method
from implicit_conv.cpu.methods.planar_weight_grad import PlanarWeightGrad
from implicit_conv.cpu.methods.weight_grad import WeightGrad, WeightGradLanes

# Under precision "strict" the first two have one order of sums, and the last one is refused.
WEIGHT_GRADIENTS: tuple[type[Method], ...] = (WeightGrad, WeightGradLanes, PlanarWeightGrad)
