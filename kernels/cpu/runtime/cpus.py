"""The CPUs that this process may run on."""

import os
from collections.abc import Collection


def usable_cpus() -> Collection[int]:
    """Their numbers; those of all CPUs where the system does not tell, as macOS, or refuses."""
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):
        return range(os.cpu_count() or 1)
