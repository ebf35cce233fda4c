"""The methods of input gradients of real numbers with padding of zeros."""

from implicit_conv.cpu.candidates.candidate import Method
from implicit_conv.cpu.engines.fold import Fold
from implicit_conv.cpu.engines.stride_phases import Phases
from implicit_conv.cpu.plan.input_gradients import INPUT_GRADIENTS

# Under precision "strict" the first one that can run fixes the order of sums.
GRADIENTS: tuple[type[Method], ...] = (*INPUT_GRADIENTS, Phases, Fold)
