"""For doors: how many threads a call may have, and threads of another library in place of ours."""

from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.kernels.cpu.runtime.active_threads import use as use_team
from implicit_conv.kernels.cpu.runtime.openmp import OpenMpTeam

__all__ = ["OpenMpTeam", "available_threads", "use_team"]


def available_threads() -> int:
    """The number of CPUs that this process may use."""
    return cpu_arch().threads
