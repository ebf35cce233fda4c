"""For doors: filters that order the elements of windows."""

from implicit_conv.cpu.engines.rank_filters import CONSTANT, Images, RankLaunch, extremes, ranks

__all__ = ["CONSTANT", "Images", "RankLaunch", "extremes", "ranks"]
