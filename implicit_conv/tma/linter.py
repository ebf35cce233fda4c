"""The linter: errors in a tensor map or a load, and warnings on what looks wrong.

It takes our maps, the keyword arguments of our maps, or the raw arguments of the driver's two
calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from typing import Any

from implicit_conv.problem import Problem
from implicit_conv.tma.driver import (
    ARGUMENTS,
    argument_name,
    describe_arguments,
    with_integers,
)
from implicit_conv.tma.hints import (
    UPPER,
    corners_swapped,
    looks_like_elements,
    order_hint,
    with_hints,
)
from implicit_conv.tma.limits import (
    DRIVER,
    NOT_SIMULATED,
    Description,
    Finding,
    Start,
    TensorMapError,
    integer,
    integers,
    rename,
)
from implicit_conv.tma.maps import Im2colMap, Im2colWideMap, TensorMap
from implicit_conv.tma.rules import map_findings, start_findings

CONVENTION = "addressing of a convolution"
SMEM_BYTES = 227 * 1024  # shared memory of one block on compute capability 9.0 and 10.0


def lint(
    map: TensorMap | Mapping[str, Any] | None = None,
    *,
    coords: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    w_halo: int = 0,
    w_offset: int = 0,
    dst: int = 0,
    problem: Problem | None = None,
    operator: str = "fprop",
    **arguments: Any,
) -> list[Finding]:
    """Everything wrong with a tensor map, and with a load if `coords` are given.

    Parameters
    ----------
    map : Im2colMap, Im2colWideMap or mapping, optional
        A map, or arguments as below.
    coords, offsets, w_halo, w_offset, dst
        A load, as in `smem_image`: row-major, (n, [d,] h, w, c).
    problem, operator : Problem and {"fprop", "dgrad", "wgrad"}, optional
        The convolution that the map is for; its walk is then compared as well.
    **arguments
        Either the keyword arguments of `Im2colMap` or `Im2colWideMap`, or those of
        cuTensorMapEncodeIm2col or cuTensorMapEncodeIm2colWide by the names of cuda.h, with arrays
        fastest-first and enumerations as names or numbers. Any integers are accepted.

    Returns
    -------
    list of Finding
        Errors come before warnings. An error is a broken rule with its field, value, range, source
        and a hint; a warning is legal but probably a mistake. A sound map has no findings.

    Raises
    ------
    TypeError
        An argument belongs to no map, or is neither an integer nor a sequence of integers where it
        must be one.
    """
    description: Description | None
    found: list[Finding] = []
    if isinstance(map, TensorMap):
        description, names = map.description, map.description.field
    else:
        given = {**(map or {}), **arguments}
        given.pop("function", None)
        description, found, names = _read(given)
    if description is None:
        return found
    broken = map_findings(description)
    start = None
    if coords is not None:
        start = Start(
            integers("coords", coords),
            None if offsets is None else integers("offsets", offsets),
            integer("w_halo", w_halo),
            integer("w_offset", w_offset),
            integer("dst", dst),
        )
        if not any(f.severity == "error" for f in broken):
            broken += start_findings(description, start)
    if problem is not None:
        from implicit_conv.tma.expect import convolution_findings

        broken += convolution_findings(description, problem, operator)
    if description.rank in (3, 4, 5):
        broken += _suspicions(description, start, broken)
    ours = rename(with_hints(description, broken, start), names)
    found += [_as_given(f) for f in ours] if description.fastest_first else ours
    return sorted(found, key=lambda f: f.severity != "error")


def _read(given: Mapping[str, Any]) -> tuple[Description | None, list[Finding], Any]:
    """(description, findings on the form, function that names fields) of arguments of any kind."""
    if "globalDim" in given or "tensorDataType" in given or not set(given) - set(ARGUMENTS):
        unknown = set(given) - set(ARGUMENTS)
        if unknown:
            raise TypeError(
                f"{', '.join(sorted(unknown))}: the driver's calls have no such argument"
            )
        given = with_integers(given)
        description, found = describe_arguments(given)
        found += [*_unused_steps(given)] if description else []
        return description, found, argument_name(description) if description else str
    kind = Im2colWideMap if "lower_corner_w" in given or "mode" in given else Im2colMap
    known = {field.name: field for field in fields(kind)}
    unknown = set(given) - set(known)
    if unknown:
        names = ", ".join(sorted(unknown))
        raise TypeError(f"{kind.__name__} has no argument {names}; it has {', '.join(known)}")
    missing = [n for n, field in known.items() if field.default is MISSING and n not in given]
    if missing:
        findings = [Finding(name, None, "is missing", kind.__name__) for name in missing]
        return None, findings, str
    try:
        description = kind(**given).description
    except TensorMapError as refused:
        if refused.description is None:
            return None, list(refused.findings), str
        description = refused.description
    return description, [], description.field


def _as_given(finding: Finding) -> Finding:
    """The finding with whole arrays in the order of the driver."""
    whole = isinstance(finding.value, tuple) and not finding.field.endswith("]")
    return replace(finding, value=finding.value[::-1]) if whole else finding


def _suspicions(
    m: Description, start: Start | None, broken: Sequence[Finding]
) -> Iterator[Finding]:
    """Warnings on what is legal but rarely intended."""
    wrong = {finding.field for finding in broken}
    for finding in (*_corner_suspicions(m), *_stride_suspicions(m), *_start_suspicions(m, start)):
        if finding.field not in wrong:
            yield replace(finding, severity="warning")
    if m.swizzle in NOT_SIMULATED and "swizzle" not in wrong:
        allowed = "is legal, but its shared memory is not simulated"
        yield Finding("swizzle", m.swizzle, allowed, DRIVER, severity="warning")
    row_bytes = m.channels * m.itemsize
    if m.mode != "w128" and m.pixels * row_bytes > SMEM_BYTES and not wrong & {"pixels_per_column"}:
        allowed = f"{m.pixels} rows of {row_bytes} bytes exceed the {SMEM_BYTES} of shared memory"
        yield Finding("pixels_per_column", m.pixels, allowed, CONVENTION, severity="warning")


def _corner_suspicions(m: Description) -> Iterator[Finding]:
    """Corners that no convolution with equal low and high padding has."""
    if not len(m.lower) == len(m.upper) == len(m.sizes):
        return
    for axis, lower, upper in zip(m.axes, m.lower, m.upper, strict=True):
        if lower + upper > 0 or (lower < 0 and lower + upper == 0):
            allowed = "upper corner reaches past the last output: rows would overrun"
            hint = f"{UPPER}: below {-lower if lower < 0 else 1} unless high padding is larger"
            yield Finding(f"upper_corner[{axis}]", upper, allowed, CONVENTION, hint)
        if lower > 0:
            allowed = "the box begins inside the image"
            yield Finding(f"lower_corner[{axis}]", lower, allowed, CONVENTION, "lower = -pad_lo")


def _stride_suspicions(m: Description) -> Iterator[Finding]:
    """Byte strides that do not suit a tensor in this order of dimensions."""
    strides, sizes = m.strides, m.shape[1:]
    if strides is None or len(strides) != m.rank - 1:
        return
    ends = (*strides[1:], m.itemsize)
    short = [i for i in range(len(strides)) if strides[i] < ends[i] * sizes[i]]
    if not short:
        return
    if looks_like_elements(m):
        hint = "strides look like elements; they must be bytes"
        yield Finding("strides", strides, "rows overlap", DRIVER, hint)
    elif replace(m, shape=m.shape[::-1], strides=None).byte_strides == strides:
        order = "row-major; the driver reads c first" if m.fastest_first else "fastest-first"
        yield Finding("shape", m.shape, "does not go with the strides", DRIVER, f"looks {order}")
    elif replace(m, strides=None).byte_strides == strides[::-1]:
        order = "row-major; the driver reads W's first" if m.fastest_first else "fastest-first"
        yield Finding("strides", strides, "do not go with the shape", DRIVER, f"look {order}")
    else:
        letters = f"n{'dhw'[5 - m.rank :]}"
        allowed = "is smaller than the dimension it steps over"
        hint = "are dimensions permuted, as for the im2col::w walk on sm_90? It may not encode"
        for i in short:
            yield Finding(f"strides[{letters[i]}]", strides[i], allowed, DRIVER, hint)


def _start_suspicions(m: Description, start: Start | None) -> Iterator[Finding]:
    """A start that is not among the pixels that the walk visits after it wraps."""
    if start is None or len(start.coords) != m.rank or len(m.step) != len(m.sizes):
        return
    coords = start.coords[-2:-1] if m.wide else start.coords[1:-1]
    if not m.wide and len(m.lower) == len(m.upper) == len(m.sizes) > 1:
        outside, turned = start_findings(m, start), start_findings(corners_swapped(m), start)
        if _outside(outside) and not _outside(turned):
            allowed = "do not hold the start; exchanged they do"
            yield Finding("lower_corner", m.lower, allowed, CONVENTION, order_hint(m, "corners"))
    for axis, x, lower, step in zip(m.axes, coords, m.lower, m.step, strict=True):
        if step > 0 and (x - lower) % step:
            allowed = f"is not a multiple of the step {step} from the lower corner {lower}"
            hint = "start = lower + p * stride: otherwise rows after the first wrap are shifted"
            yield Finding(f"coords[{axis}]", x, allowed, CONVENTION, hint)


def _outside(findings: Sequence[Finding]) -> bool:
    return any(f.field.startswith("coords") for f in findings)


def _unused_steps(given: Mapping[str, Any]) -> Iterator[Finding]:
    """Entries of elementStrides that are not 1 although no im2col walk uses them."""
    steps = given["elementStrides"]
    wide = "pixelBoxLowerCornerWidth" in given
    unused = {0, *(range(2, len(steps)) if wide else (len(steps) - 1,))}
    for axis in sorted(unused & set(range(len(steps)))):
        if 1 < steps[axis] <= 8:
            name, hint = f"elementStrides[{axis}]", "entries are for c, w, h, d, n"
            yield Finding(name, steps[axis], "is not used", DRIVER, hint, "warning")
