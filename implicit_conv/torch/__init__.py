"""torch's convolutions, computed by this package: no model needs a change.

A door: it imports operators, arrays and problems. Importing it does not import torch; its functions
do.
"""

from __future__ import annotations

import operator
import sys
import types
from typing import TYPE_CHECKING, Any

from implicit_conv.errors import PlanError, require
from implicit_conv.problem.options import PRECISIONS
from implicit_conv.problem.parse import choice
from implicit_conv.process.preparation import first, prepare
from implicit_conv.settings import named
from implicit_conv.torch.options import CHOOSE

if TYPE_CHECKING:
    from implicit_conv.torch.switch import Enabled

__all__ = ["convert", "disable", "enable", "explain", "is_enabled", "restore"]

# The first torch whose kernels can be kept and called, by torch.library.get_kernel.
NEEDED = "torch>=2.13"


def __dir__() -> list[str]:
    return __all__


@named
def enable(
    keep_packed: int = 256 << 20, *, precision: str = "standard", choose: str = "measured"
) -> Enabled:
    """Compute torch's convolutions with this package, in the whole process.

    It takes over ``aten::convolution`` and ``aten::convolution_backward`` for tensors on the CPU of
    dtype float32, float64, float16 and bfloat16, and the first of them for images on an NVIDIA GPU
    of dtype float16, bfloat16 and float32. What it does not serve runs torch's own kernel, and so
    do the errors of torch. The page "torch models, unchanged" says more.

    Parameters
    ----------
    keep_packed : int
        The most bytes that packed filters of parameters, and the copies that they are compared
        with, may take. A packed filter is used only while every byte of the parameter is the same.
        0 packs no filter in advance.
    precision : "strict", "standard" (default) or "fast"
        As in `implicit_conv.conv2d`. With "strict" an infinity or a NaN in the input gives what
        torch's kernel gives, and results do not depend on the number of threads; "standard" may
        compute filters of at most 3x3 taps by Winograd, which turns an infinity into NaNs.
    choose : "measured" (default) or "always"
        "measured" times our kernel and torch's, in turn, when a call of new shapes comes first,
        and keeps the faster one: in this process, and in a table on disk for later ones. That first
        call takes as long as at most eight pairs of calls. Two processes may choose differently,
        and so differ in last bits. "always" runs our kernel wherever it can, and so does
        "measured" with precision "strict" and under ``torch.use_deterministic_algorithms(True)``.
        On a GPU "measured" takes the times of three calls of each by events, and torch's kernel
        runs where deterministic algorithms are asked for and precision is not "strict"; a call that
        is new while a CUDA graph is captured runs torch's kernel.

    Returns
    -------
    enabled : context manager
        Leaving its ``with`` block undoes this call. Without a block, `disable` does.

    Raises
    ------
    ImportError
        torch is not installed, or is older than 2.13.
    TypeError
        `keep_packed` is no integer, for example a model.
    ValueError
        `keep_packed` is negative, or `precision` or `choose` is unknown.

    Examples
    --------
    >>> import torch
    >>> import implicit_conv.torch
    >>> x, conv = torch.ones(1, 1, 3, 3), torch.nn.Conv2d(1, 1, 3, bias=False)
    >>> with implicit_conv.torch.enable():
    ...     y = conv(x)
    """
    size, word = _bytes(keep_packed), choice("precision", precision, PRECISIONS, error=PlanError)
    way = choice("choose", choose, CHOOSE, error=PlanError)
    enabled: Enabled = prepare(_override).enable(size, word, way)
    return enabled


def disable() -> None:
    """Give torch its own kernels back, however often `enable` was called.

    Raises
    ------
    ImportError
        torch is not installed, or is older than 2.13.

    Examples
    --------
    >>> import implicit_conv.torch
    >>> enabled = implicit_conv.torch.enable()
    >>> implicit_conv.torch.disable()
    """
    prepare(_override).disable()


def is_enabled() -> bool:
    """Whether `enable` is in force. It does not import torch.

    Examples
    --------
    >>> import implicit_conv.torch
    >>> with implicit_conv.torch.enable():
    ...     implicit_conv.torch.is_enabled()
    True
    """
    override = sys.modules.get("implicit_conv.torch.override")
    return override is not None and override.SWITCH.is_on


def explain(model: Any, x: Any) -> str:
    """What `enable` changes for a model: a table of its convolutions, with measured times.

    The model runs several times in eval mode, without gradients; its modes are as before at the
    end. Meanwhile other threads of the process may find `enable` in force, or not.

    Parameters
    ----------
    model : torch.nn.Module, or another function of tensors
    x : tensor, or tuple of the arguments of the model

    Returns
    -------
    text : str
        A line for each convolution, in the order in which they run: its module, the shapes of its
        input and filter, the algorithm that computes it ("torch" for what is declined), its time
        here and by torch's own kernel, medians of calls in turn, and its share of the time that the
        model takes with torch's kernels. Below, the layers whose race torch's kernel won when they
        ran first, the times of the whole model and the limit that Amdahl's law sets: how much
        faster it would be if nothing but convolutions changed. Beside other work no ratio is told,
        which the first line then says. Of a model that `convert` took, a second table says what
        each of its convolutions computes in one launch, and in which program.

    Raises
    ------
    TypeError
        `model` is a class or cannot be called, or `x` is a shape, an array of numpy, or on another
        device than the CPU.

    Examples
    --------
    >>> import torch
    >>> import implicit_conv.torch
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU())
    >>> table = implicit_conv.torch.explain(model, torch.ones(1, 3, 8, 8))
    """
    text: str = prepare(_report).report(model, x if isinstance(x, tuple) else (x,))
    return text


@named
def convert(model: Any, *, precision: str = "standard", choose: str = "measured") -> Any:
    """Have calls of a model compute whole chains of convolutions as one program, in place.

    The model's call is compiled by ``torch.compile(backend="implicit_conv")``, and so are calls of
    the modules inside that have convolutions. Without gradients, a convolution computes its batch
    norm, residual and activation in the same launch, and convolutions that follow each other are
    one program. The model stays the object that it is, with its modules, parameters and
    ``state_dict``. The page "Convert a torch model" says what else stays, and what is torch's.

    Parameters
    ----------
    model : torch.nn.Module
        One that was converted is converted anew.
    precision : "strict", "standard" (default) or "fast"
        As in `enable`, which need not be in force.
    choose : "measured" (default) or "always"
        As in `enable`: what the first call finds to be faster runs, or always ours.

    Returns
    -------
    model : torch.nn.Module
        The same object. The first call of each part compiles, which takes some seconds; `explain`
        tells what became of the convolutions.

    Raises
    ------
    ImportError
        torch is not installed, or is older than 2.13.
    RuntimeError
        torch.compile does not serve this version of Python.
    TypeError
        `model` is no module.
    ValueError
        `precision` or `choose` is unknown.

    Notes
    -----
    Changed weights are seen where torch counts versions: those of optimisers, ``load_state_dict``,
    ``copy_`` and other operators under ``no_grad``, also new tensors and ``weight.data = ...``.
    Writes by ``weight.data.add_()``, by numpy arrays over the memory and by other processes are
    not: then call `convert` again. ``model.forward(x)`` is not compiled.

    Examples
    --------
    >>> import torch
    >>> import implicit_conv.torch
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    >>> model = implicit_conv.torch.convert(model)
    >>> with torch.no_grad():
    ...     y = model(torch.ones(1, 3, 8, 8))
    >>> model = implicit_conv.torch.restore(model)
    """
    word = choice("precision", precision, PRECISIONS, error=PlanError)
    way = choice("choose", choose, CHOOSE, error=PlanError)
    return prepare(_conversion).convert(model, word, way)


def restore(model: Any) -> Any:
    """Undo `convert`, for the model and all modules inside.

    Parameters
    ----------
    model : torch.nn.Module
        A model that `convert` took; one that it did not take is left as it is.

    Returns
    -------
    model : torch.nn.Module
        The same object.

    Raises
    ------
    ImportError
        torch is not installed, or is older than 2.13.
    TypeError
        `model` is no module.

    Examples
    --------
    >>> import torch
    >>> import implicit_conv.torch
    >>> model = implicit_conv.torch.convert(torch.nn.Conv2d(3, 8, 3))
    >>> model = implicit_conv.torch.restore(model)
    """
    return prepare(_conversion).restore(model)


def _bytes(keep_packed: Any) -> int:
    """`keep_packed` as an integer.

    Raises
    ------
    TypeError
        It is none.
    ValueError
        It is negative.
    """
    try:
        size = operator.index(keep_packed)
    except TypeError:
        given = type(keep_packed).__name__
        raise TypeError(
            f"keep_packed must be a number of bytes, not {given}; enable() takes no model, because "
            "it serves all models of the process: call enable() alone, or explain(model, x)"
        ) from None
    if size < 0:
        raise ValueError(f"keep_packed={size} must be a number of bytes, at least 0")
    return size


# They import torch, so `prepare` calls them: a child that is forked meanwhile would wait
# for the lock of an import for ever.


def _override() -> types.ModuleType:
    first("implicit_conv.torch.override")
    require(NEEDED, __name__)
    from implicit_conv.torch import override

    return override


def _conversion() -> types.ModuleType:
    first("implicit_conv.torch.conversion")
    require(NEEDED, __name__)
    from implicit_conv.torch import conversion

    return conversion


def _report() -> types.ModuleType:
    first("implicit_conv.torch.report")
    require(NEEDED, __name__)
    from implicit_conv.torch import report

    return report
