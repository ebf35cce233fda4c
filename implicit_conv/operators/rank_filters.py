"""For doors: filters that order the elements of windows."""

from implicit_conv.cpu.engines.rank_filters import Images, extremes, ranks

__all__ = ["Images", "extremes", "ranks"]
