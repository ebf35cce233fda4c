"""For doors: times of ours and of a neighbour's calls, kept by machine and versions."""

from implicit_conv.cpu.plan.times import Table, Times, size_name

__all__ = ["Table", "Times", "size_name"]
