"""Random weights with which a network computes numbers as large as those of a trained one.

With the weights that libraries begin with, EfficientNet's activations shrink to subnormals, which
take a CPU many times longer than other numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

CONVOLUTIONS = tuple(
    getattr(nn, f"Conv{kind}{rank}d") for kind in ("", "Transpose") for rank in (1, 2, 3)
)
NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d


def initialise(model: Any, x: Any) -> None:
    """Draw the filters of a module as He et al., "Delving Deep into Rectifiers" (2015), and have
    its batch normalization scale by 1, and know the statistics of what x leads to.
    """
    norms = []
    for module in model.modules():
        if isinstance(module, CONVOLUTIONS):
            # Filters that are computed from other parameters are left as they are.
            if "weight" in module._parameters:
                nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, NORMS):
            module.reset_parameters()
            norms.append((module, module.momentum))
    model.eval()
    for norm, _ in norms:
        norm.momentum, norm.training = 1.0, True
    with torch.no_grad():
        model(x)
    for norm, momentum in norms:
        norm.momentum, norm.training = momentum, False
