"""The steps of a choice: those of its first candidate that takes the arrays of a call."""

from __future__ import annotations

import logging

from implicit_conv.arrays.arrays import Array, numpy_dtype
from implicit_conv.cpu.candidates.candidate import Candidate, Choice
from implicit_conv.cpu.candidates.query import Formats
from implicit_conv.cpu.plan import planner
from implicit_conv.cpu.run.call import Arrays, contiguous_strides
from implicit_conv.cpu.run.packed import PlainOrder
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.program import Room, Step, array_at
from implicit_conv.kernels.geometry import Epilogue
from implicit_conv.problem.options import ITEMSIZES
from implicit_conv.process.preparation import prepare

LOG = logging.getLogger("implicit_conv")


class StridesError(PlanError):
    """No candidate takes arrays of these strides."""


def steps_of(
    choice: Choice,
    arrays: Arrays,
    epilogue: Epilogue,
    formats: Formats,
    room: Room,
    names: tuple[str, str] = ("x", "w"),
) -> list[Step]:
    """The steps of the first candidate that takes `arrays`, which have the axes of the caller, and
    are called `names` in messages.

    Raises
    ------
    StridesError
        There is none.
    """
    first, packed = choice.best, arrays.w is None
    given, filter_axes, end = arrays, None, room.end
    if packed:
        first = choice.best_packed
        order = first.packed
        if isinstance(order, PlainOrder):  # which any method reads
            given, filter_axes = arrays._replace(w=_plain(order, arrays.panels)), order.axes
    refused: StridesError | None = None
    for c in choice.in_order(first):
        method = c.method
        if given.w is None and c is not first and c.packed.key != order.key:
            continue
        if not method.serves.takes(epilogue, arrays.residual is not None):
            continue
        views = method.views(c, given, filter_axes)
        if not method.accepts(c, views):
            continue
        if c is not first:
            LOG.debug("%s runs, because %s needs %s", c.name, first.name, first.method.needs)
        try:
            return prepare(_steps, c, views, epilogue, formats, room, end)
        except StridesError as error:  # of a part
            refused = refused or error
    if choice.near:  # other methods were not asked
        return steps_of(planner.estimated(choice.query), arrays, epilogue, formats, room, names)
    raise refused or _refusal(choice, arrays, epilogue, names)


def _steps(
    c: Candidate, views: Arrays, epilogue: Epilogue, formats: Formats, room: Room, end: int
) -> list[Step]:
    """The steps of a candidate, whose room begins at `end`: `prepare` may ask for them twice."""
    room.end = end
    return c.method.steps(c, views, epilogue, formats, room)


def _plain(order: PlainOrder, panels: int) -> Array:
    """The packed filter at `panels`, whose elements are in a plain order."""
    strides = contiguous_strides(order.shape, ITEMSIZES[order.dtype])
    return array_at(panels, order.shape, numpy_dtype(order.dtype), strides)


def _refusal(
    choice: Choice, arrays: Arrays, epilogue: Epilogue, names: tuple[str, str]
) -> StridesError:
    """The error where no candidate takes the strides: for lack of memory, or for what else was
    given.
    """
    both, query = " and ".join(names), choice.query._replace(arrays=arrays)
    request, needs = query.request, choice.best.method.needs
    because = f", because {choice.best.name} needs {needs}" if needs else ""
    least = planner.least_workspace(query)
    if request.max_workspace is not None and least > request.max_workspace:
        return StridesError(
            f"max_workspace is {request.max_workspace} bytes, but {both} of these strides need "
            f"{least}{because}; pass contiguous arrays, max_workspace={least}, or None for no limit"
        )
    given = {
        "packed filter": arrays.w is None,
        "bias": epilogue.biased,
        "scale": epilogue.scaled,
        "residual": arrays.residual is not None,
    }
    found = [name for name, is_given in given.items() if is_given]
    ways = ["contiguous arrays"] * bool(needs) + [f"no {name}" for name in found]
    return StridesError(
        f"no method takes {both} of these strides{''.join(f' and a {name}' for name in found)}"
        f"{because}; pass {' or '.join(ways)}"
    )
