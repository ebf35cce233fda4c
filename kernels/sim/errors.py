"""Errors of the simulator."""


class SimulationError(Exception):
    """A kernel that would read wrong data, write out of bounds, or never end."""


class Aborted(BaseException):
    """Ends the thread of a warp after another warp has failed."""
