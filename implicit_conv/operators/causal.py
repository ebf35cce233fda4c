"""Streaming: a causal 1-d convolution whose signal comes sample by sample, or in chunks."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from implicit_conv.arrays.arrays import Array, as_array
from implicit_conv.errors import DTypeError, PlanError, ShapeError
from implicit_conv.operators.conv import conv1d
from implicit_conv.problem.options import WEIGHT_LAYOUTS_OF, Activation, Precision, WeightLayout


class CausalConv1d:
    """A causal convolution that remembers the end of the signal it has seen.

    The results of all calls, one after the other, are `conv1d` of the whole signal with
    ``padding="causal"``: output q is a sum over samples up to q * stride. With precision "strict"
    they have its bits for any division into chunks.

    Parameters
    ----------
    w : array of shape (K, C / groups, S), or in `weight_layout`
        It is copied.
    bias, stride, dilation, groups, weight_layout, activation, scale, out_dtype
        As in `conv1d`.
    precision : "strict" (default), "standard" or "fast"

    Raises
    ------
    PlanError, ShapeError, DTypeError
        As in `conv1d`, when the first samples come; here if `stride` or `dilation` is not a
        positive integer, `weight_layout` is unknown, or `w` does not have three axes.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import CausalConv1d
    >>> mean = CausalConv1d(np.full((1, 1, 2), 0.5))
    >>> mean.chunk(np.array([[2.0, 4.0, 6.0]]))
    array([[1., 3., 5.]])
    >>> mean.step(np.array([8.0]))
    array([7.])
    """

    def __init__(
        self,
        w: ArrayLike,
        bias: ArrayLike | None = None,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        *,
        weight_layout: WeightLayout = "KCS",
        activation: Activation = None,
        scale: ArrayLike | None = None,
        out_dtype: DTypeLike | None = None,
        precision: Precision = "strict",
    ) -> None:
        for name, value in (("stride", stride), ("dilation", dilation)):
            if not isinstance(value, (int, np.integer)) or value < 1:
                raise PlanError(f"{name} is {value!r}; it must be an integer of at least 1")
        layout = weight_layout.upper()
        if layout not in WEIGHT_LAYOUTS_OF[1]:
            raise PlanError(f"weight_layout is {weight_layout!r}; it must be KCS, KSC or SCK")
        self._w = np.array(as_array("w", w))
        if self._w.ndim != 3 or 0 in self._w.shape:
            raise ShapeError(f"w has shape {self._w.shape}; it must have the axes {layout}")
        self._stride = int(stride)
        self._reach = (self._w.shape[layout.index("S")] - 1) * int(dilation)  # samples before one
        self._options: dict[str, Any] = {
            "bias": bias if bias is None else np.array(as_array("bias", bias)),
            "scale": scale if scale is None else np.array(as_array("scale", scale)),
            "stride": self._stride,
            "dilation": int(dilation),
            "groups": groups,
            "weight_layout": layout,
            "activation": activation,
            "out_dtype": out_dtype,
            "precision": precision,
        }
        self.reset()

    def reset(self) -> None:
        """Forget the signal: zeros precede the next sample."""
        self._before: Array | None = None
        self._wait = 0  # samples before the next output's last one

    def copy(self) -> CausalConv1d:
        """A convolution in the same state, which goes its own way from here."""
        return copy.copy(self)  # arrays of the state are replaced, never written

    def chunk(self, x: ArrayLike) -> Array:
        """The outputs that the next samples complete.

        Parameters
        ----------
        x : array of shape (N, C, W) or (C, W)
            W may be 0, and differ from call to call.

        Returns
        -------
        y : array of shape (N, K, Q) or (K, Q)
            Q is W for stride 1, and may be 0.

        Raises
        ------
        ShapeError, DTypeError
            Batch, channels or dtype differ from those of the signal so far, or as in `conv1d`.
        """
        x = as_array("x", x)
        values = np.concatenate([self._history(x), x], axis=-1)
        size = x.shape[-1]
        count = max(0, -(-(size - self._wait) // self._stride))
        wanted = values[..., self._wait :] if count else values[..., :0]
        missing = self._reach + 1 + (max(count, 1) - 1) * self._stride
        missing -= wanted.shape[-1]
        if missing > 0:
            end = np.zeros((*x.shape[:-1], missing), x.dtype)
            wanted = np.concatenate([wanted, end], axis=-1)
        y = conv1d(wanted, self._w, **self._options)[..., :count]
        self._before = values[..., size:].copy()  # a view would keep the whole chunk
        self._wait += count * self._stride - size
        return y

    def step(self, x: ArrayLike) -> Array | None:
        """The output that the next sample completes, or None if the stride skips it.

        Parameters
        ----------
        x : array of shape (N, C) or (C,)

        Returns
        -------
        y : array of shape (N, K) or (K,), or None

        Raises
        ------
        ShapeError, DTypeError
            As in `chunk`.
        """
        y = self.chunk(as_array("x", x)[..., None])
        return y[..., 0] if y.shape[-1] else None

    def _history(self, x: Array) -> Array:
        """The samples before `x` that windows reach."""
        if x.ndim not in (2, 3):
            raise ShapeError(
                f"a chunk has shape {x.shape}; it must be (N, C, W) or (C, W), and a step (N, C) "
                "or (C,)"
            )
        if self._before is None:
            return np.zeros((*x.shape[:-1], self._reach), x.dtype)
        if self._before.shape[:-1] != x.shape[:-1]:
            raise ShapeError(
                f"the signal so far has batch and channels {self._before.shape[:-1]}, but the next "
                f"samples have {x.shape[:-1]}; call reset() before another signal"
            )
        if self._before.dtype != x.dtype:
            raise DTypeError(
                f"the signal so far is {self._before.dtype}, but the next samples are {x.dtype}; "
                "convert them, or call reset() before another signal"
            )
        return self._before
