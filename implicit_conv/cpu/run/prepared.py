"""Prepared calls: fixed arrays, whose addresses are compared at each call."""

from __future__ import annotations

import functools
from typing import Any

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.run.call import compiled
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.same_arrays import NAMES, Record


class PreparedCall:
    """A call whose arrays are fixed: ``prepared()`` computes `out` anew from what they hold then.

    It holds all that it reads by address: the arrays, the packed filter, and the bias and the
    scale, which are its own. Before it reads or writes, it compares addresses, shapes, strides and
    dtypes with those that the arrays had; see `Plan.prepare`.
    """

    __slots__ = ("_again", "_compute", "_differing", "_held", "out")

    def __init__(
        self, engine: Any, x: Any, w: Any, bias: Any, residual: Any, out: Any, scale: Any
    ) -> None:
        """`bias` and `scale` are of `Executor.vectors`, and nobody else writes them."""
        first, second = engine.operands(x, w)
        y = engine.run(first, second, bias, residual, out, scale)
        repeated, scaled = None, scale is not None
        if first is x and second is w and y is out:
            repeated = engine.repeated((x, w), (x, w), bias, residual, out, y, scaled=scaled)
        if repeated is None:
            raise PlanError(
                "only a call of the CPU that reads and writes its arrays in place can be prepared: "
                "x, w, residual and out must be numpy arrays with aligned elements of native byte "
                "order, out may not share memory with the others and must have the dtype of the "
                "sums, integers have no residual, and beside a scale residual and out are "
                "contiguous; call the plan instead"
            )
        packed = repeated.key is not None
        arrays = x, w.panels if packed else w, bias, residual, out
        self.out: Array = out
        self._held = arrays, w, scale
        record = Record(*arrays, fixed=True)
        self._differing = functools.partial(record.comparison(), *arrays)
        program = repeated.call.fixed(bias, scale)
        of_w = w.operand if packed else w.ctypes.data
        added = 0 if residual is None else residual.ctypes.data
        given = x.ctypes.data, of_w, out.ctypes.data, added
        self._compute = functools.partial(program.run, *given)
        words = program.words
        made = None if words is None else compiled().again(record, words, out)
        self._again = None if made is None else functools.partial(made, *arrays)

    def __call__(self) -> Array:
        """Compute `out` and return it.

        Raises
        ------
        PlanError
            An array has been resized, or has another shape, strides or dtype than before, or `out`
            is read-only now.
        """
        if self._again is None or self._again() is None:
            place = self._differing()
            if place:
                raise PlanError(
                    f"{NAMES[place - 1]} has been resized, or has another shape, strides, dtype or "
                    "flags than when the call was prepared; prepare it again with plan.prepare"
                )
            self.compute()
        return self.out

    def compute(self) -> Array:
        """Compute `out` by functions of Python, and without checks."""
        self._compute()
        return self.out
