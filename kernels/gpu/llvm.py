"""llvmlite, which only those import who emit: planning does without."""

from llvmlite import ir

__all__ = ["ir"]
