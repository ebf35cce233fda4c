"""A machine on which small problems have all that large ones have elsewhere: several load tiles,
chunks of panels, and threads.
"""

from contextlib import contextmanager

import cost_tables
import pytest

from implicit_conv import clear_plan_cache
from implicit_conv.cpu.machine import arch

CACHE_BYTES = {1: 4 << 10, 2: 16 << 10}  # by level


@contextmanager
def tight_machine():
    """In a block, caches are small, and little work pays for another thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arch, "cache_bytes", lambda system, level, cpu: CACHE_BYTES[level])
        cost_tables.change(patch, "threads", flops=2e3, bytes=256)
        _forget()
        yield
    _forget()


def _forget():
    arch.cpu_arch.cache_clear()
    clear_plan_cache()
