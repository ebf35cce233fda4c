"""What the simulator reports."""


class SimulationError(Exception):
    """A kernel that would read wrong data, write out of bounds, or never end."""


class Aborted(BaseException):
    """Another warp failed: this one stops."""
