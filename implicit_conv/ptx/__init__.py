"""An interpreter of PTX on numpy arrays: it runs kernels without a GPU, and finds their races.

Written from the PTX ISA alone: it needs numpy and knows nothing of this package's kernels.
`run` runs a kernel from its text; `parse`, `Memory` and `Launch` are the parts that it is made of.
"""

from __future__ import annotations

from implicit_conv.ptx.errors import LaunchError, PtxError, UnsupportedError
from implicit_conv.ptx.launch import Launch
from implicit_conv.ptx.machine.watch import SharedRead, TensorCopy
from implicit_conv.ptx.memory.global_memory import Memory
from implicit_conv.ptx.memory.tensor_map import TensorMap
from implicit_conv.ptx.memory.traffic import Traffic
from implicit_conv.ptx.run import Report, Tensor, run
from implicit_conv.ptx.text.blocks import parse

__all__ = [
    "Launch",
    "LaunchError",
    "Memory",
    "PtxError",
    "Report",
    "SharedRead",
    "Tensor",
    "TensorCopy",
    "TensorMap",
    "Traffic",
    "UnsupportedError",
    "parse",
    "run",
]
