"""Views in graphs with gradients, of results that may have other strides than torch has traced.

Torch expects strides of `roll` and of `logsigmoid`, and of the gradients of ReLU6, ELU and
hardswish, that are not those of what their kernels write (torch 2.13). AOTAutograd then traces a
view where eager torch copies, and no such view exists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph

from implicit_conv.torch.steps import LOG

aten = torch.ops.aten


class ViewError(RuntimeError):
    """A result of a graph has strides of which there is no such view."""


def copy_without_view(graph: Graph) -> None:
    """Have a backward graph copy where there is no view. Nothing is written to its gradients, so
    that none needs to see what is written to another.
    """
    _replace_views(graph, aten.reshape.default)


def fail_without_view(graph: Graph) -> None:
    """Have a forward graph raise a ViewError where there is no view."""
    _replace_views(graph, _view)


def _replace_views(graph: Graph, function: Callable[..., Any]) -> None:
    for node in graph.nodes:
        if node.target is aten.view.default:
            node.target = function


def _view(x: Any, shape: Any) -> Any:
    try:
        return x.view(shape)
    except RuntimeError as error:
        raise ViewError(*error.args) from error


def by_torch_without_view(
    run: Callable[..., Any], torchs: Callable[..., Any]
) -> Callable[..., Any]:
    """The function `run` up to a call that raises a ViewError, and `torchs` from that call on.

    A copy in place of the view would not do: results would be taken for views of each other that
    are none. A call that fails has changed nothing, as graphs write to their inputs at the end.
    """
    fails = False

    def function(*inputs: Any) -> Any:
        nonlocal fails
        if not fails:
            try:
                return run(*inputs)
            except ViewError as error:
                LOG.debug("torch computes a graph with gradients: %s", error)
                fails = True
        return torchs(*inputs)

    return function
