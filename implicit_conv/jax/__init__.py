"""JAX's convolutions on the CPU, computed by this package: in jax.jit, jax.grad and jax.vmap too.

A door: it imports operators, arrays and problems. Importing it does not import JAX; its functions
do.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from implicit_conv.errors import PlanError, require
from implicit_conv.problem.options import PRECISIONS
from implicit_conv.problem.parse import choice
from implicit_conv.process.preparation import first, prepare
from implicit_conv.settings import named

if TYPE_CHECKING:
    from implicit_conv.jax.switch import Enabled

__all__ = ["conv_general_dilated", "disable", "enable"]

NEEDED = "jax>=0.5"  # the first release whose foreign functions all these versions share


def __dir__() -> list[str]:
    return __all__


@named
def enable(*, precision: str = "standard") -> Enabled:
    """Compute JAX's convolutions on the CPU with this package, in the whole process.

    From now on, `jax.lax.conv_general_dilated`, and so Flax, Haiku and all else that calls it, is
    lowered to this package's kernels where it surely computes the same: the page "JAX, unchanged"
    says where. All else is lowered as before. Functions that are jitted already are compiled again,
    as ``jax.clear_caches()`` is called; those that ``lower().compile()`` made stay as they are.

    Parameters
    ----------
    precision : "strict", "standard" (default) or "fast"
        As in `implicit_conv.conv2d`. Convolutions of JAX's precision HIGH or HIGHEST have "strict".

    Returns
    -------
    enabled : context manager
        Leaving its ``with`` block undoes this call. Without a block, `disable` does.

    Raises
    ------
    ImportError
        JAX is not installed, or is older than 0.5.
    OSError
        The system is not Linux.
    ValueError
        `precision` is unknown.

    Examples
    --------
    >>> import jax
    >>> import implicit_conv.jax
    >>> x, w = jax.numpy.ones((1, 4, 8, 8)), jax.numpy.ones((2, 4, 3, 3))
    >>> with implicit_conv.jax.enable():
    ...     y = jax.lax.conv(x, w, (1, 1), "SAME")
    """
    word = choice("precision", precision, PRECISIONS, error=PlanError)
    enabled: Enabled = prepare(_switch).Enabled(word)
    return enabled


def disable() -> None:
    """Lower JAX's convolutions as JAX does, however often `enable` was called.

    Raises
    ------
    ImportError
        JAX is not installed, or is older than 0.5.

    Examples
    --------
    >>> import implicit_conv.jax
    >>> enabled = implicit_conv.jax.enable()
    >>> implicit_conv.jax.disable()
    """
    prepare(_switch).disable()


def conv_general_dilated(
    lhs: Any,
    rhs: Any,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> Any:
    """`jax.lax.conv_general_dilated`, computed by this package without `enable`.

    So are its derivatives, and what `jax.vmap` makes of it. Parameters, result and errors are
    JAX's; what this package does not surely compute alike, JAX computes.

    Parameters
    ----------
    lhs, rhs : arrays of one dtype
        Images and filters, with the axes that `dimension_numbers` names.
    window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers
        As in JAX.
    feature_group_count, batch_group_count, precision, preferred_element_type
        As in JAX.
    out_sharding : optional
        As in JAX, if it has this parameter.

    Returns
    -------
    out : jax.Array

    Raises
    ------
    ImportError
        JAX is not installed, or is older than 0.5.
    TypeError, ValueError
        As JAX does.

    Examples
    --------
    >>> import jax
    >>> from implicit_conv.jax import conv_general_dilated
    >>> x, w = jax.numpy.ones((1, 4, 8, 8)), jax.numpy.ones((2, 4, 3, 3))
    >>> conv_general_dilated(x, w, (1, 1), "SAME").shape
    (1, 2, 8, 8)
    """
    options = {
        "window_strides": window_strides,
        "padding": padding,
        "lhs_dilation": lhs_dilation,
        "rhs_dilation": rhs_dilation,
        "dimension_numbers": dimension_numbers,
        "feature_group_count": feature_group_count,
        "batch_group_count": batch_group_count,
        "precision": precision,
        "preferred_element_type": preferred_element_type,
    }
    if out_sharding is not None:  # JAX's own error tells those whose JAX does not have it
        options["out_sharding"] = out_sharding
    return prepare(_primitive).convolution(lhs, rhs, options)


# Both import JAX, so `prepare` calls them: a child that is forked meanwhile would wait for the lock
# of an import for ever.


def _switch() -> types.ModuleType:
    first("implicit_conv.jax.switch")
    require(NEEDED, __name__)
    from implicit_conv.jax import switch

    return switch


def _primitive() -> types.ModuleType:
    first("implicit_conv.jax.primitive")
    require(NEEDED, __name__)
    from implicit_conv.jax import primitive

    return primitive
