"""Prepared calls: fixed arrays, whose addresses are compared at each call."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from implicit_conv.arrays.arrays import Array
from implicit_conv.cpu.run.repeated import compiled_again
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.same_arrays import NAMES, Record


class PreparedCall:
    """A call whose arrays are fixed: ``prepared()`` computes `out` anew from what they hold then.

    It keeps the arrays alive. Before it reads or writes, it compares their addresses, shapes,
    strides and dtypes with those that they had; see `Plan.prepare`.
    """

    __slots__ = ("_again", "_arrays", "_compute", "_differing", "_filter", "out")

    def __init__(self, engine: Any, x: Any, w: Any, bias: Any, residual: Any, out: Any) -> None:
        first, second = engine.operands(x, w)
        y = engine.run(first, second, bias, residual, out)
        if bias is not None:
            bias = np.array(bias, engine.problem.sum_dtype)
        in_place = first is x and second is w and y is out
        repeated = engine.repeated((x, w), (x, w), bias, residual, out, y) if in_place else None
        if repeated is None:
            raise PlanError(
                "only a call of the CPU that reads and writes its arrays in place can be prepared: "
                "x, w, residual and out must be numpy arrays with aligned elements of native byte "
                "order, out may not share memory with the others and must have the dtype of the "
                "sums, and integers have no residual; call the plan instead"
            )
        packed = repeated.key is not None
        self.out: Array = out
        self._arrays = x, w.panels if packed else w, bias, residual, out
        self._filter = w  # a packed filter owns the memory at the addresses that are its operand
        record, operand = Record(*self._arrays, fixed=True), w.operand if packed else w
        differing = record.comparison()
        assert differing is not None
        self._differing = functools.partial(differing, *self._arrays)
        self._compute = repeated.call.prepared(x, operand, bias, out, residual)
        made = compiled_again(repeated.call, record, self._arrays, operand, out)
        self._again = None if made is None else functools.partial(made, *self._arrays)

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
            self._compute()
        return self.out
