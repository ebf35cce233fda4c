"""The steps of optimisers whose writes no version counter tells."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

FUSED_STEPS = [0]


def _count(optimizer: Any, arguments: Any, options: Any) -> None:
    """Count steps of fused optimisers: they leave the versions of parameters as they are."""
    if any(group.get("fused") for group in optimizer.param_groups):
        FUSED_STEPS[0] += 1


register_optimizer_step_post_hook(_count)
