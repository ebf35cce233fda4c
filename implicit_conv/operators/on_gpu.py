"""What doors know of the GPU's engine: how a tensor is seen without questions, and the driver."""

from implicit_conv.gpu.cuda.arrays import see_tensor
from implicit_conv.gpu.cuda.driver import device_arch, version

__all__ = ["device_arch", "see_tensor", "version"]
