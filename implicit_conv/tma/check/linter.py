"""The linter: errors in a tensor map or a load, and warnings on what looks wrong.

It takes our maps, the keyword arguments of our maps, or the raw arguments of the driver's calls. If
undoing one slip removes everything that was found, only that slip is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any

from implicit_conv.problem.problem import Problem
from implicit_conv.ptx.targets import number_of
from implicit_conv.tma.check.expect import matching, nearest, operand_findings, walks_of
from implicit_conv.tma.check.slips import FIELDS, Slip, is_sure, slips, told_apart
from implicit_conv.tma.check.suspicions import (
    driver_suspicions,
    map_suspicions,
    start_suspicions,
    store_suspicions,
)
from implicit_conv.tma.maps.driver import (
    ARGUMENTS,
    argument_name,
    describe_arguments,
    map_arguments,
    of_dump,
    with_integers,
)
from implicit_conv.tma.maps.limits import (
    RANKS,
    Description,
    Finding,
    Start,
    TensorMapError,
)
from implicit_conv.tma.maps.maps import Im2colMap, Im2colWideMap, TensorMap
from implicit_conv.tma.maps.packing import packing
from implicit_conv.tma.maps.ptx import DIRECTIONS, REDUCTIONS
from implicit_conv.tma.maps.rules import (
    hint,
    map_findings,
    reduction_findings,
    start_findings,
    store_findings,
    target_findings,
)
from implicit_conv.tma.maps.tiled import TiledMap
from implicit_conv.tma.run.lowering import Lowering
from implicit_conv.tma.run.lowering_choice import Shapes, parse_problem

ATTRIBUTES = {field: attribute for attribute, field in FIELDS.items()}
TENSOR = ("shape", "strides", "dtype")  # the fields that all others stand on
OPERANDS = ("coords", "offsets", "w_halo", "w_offset", "dst")


def lint(
    map: TensorMap | Mapping[str, Any] | None = None,
    *,
    coords: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    w_halo: int = 0,
    w_offset: int = 0,
    dst: int = 0,
    problem: Problem | Shapes | None = None,
    operator: str = "fprop",
    direction: str = "load",
    arch: str | None = None,
    reduction: str = "add",
    **arguments: Any,
) -> list[Finding]:
    """Everything wrong with a tensor map, and with a load if `coords` are given.

    Parameters
    ----------
    map : TiledMap, Im2colMap, Im2colWideMap or mapping, optional
        A map, or arguments as below.
    coords, offsets, w_halo, w_offset, dst
        A load, as in `smem_image`: row-major, (n, [d,] h, w, c).
    problem, operator : Problem or two shapes as in `maps_for`, and {"fprop", "dgrad", "wgrad"}
        The convolution that the map is for, if it is for one; its walk is then compared as well,
        and nothing about the map is called unusual if it has that walk.
    direction : {"load", "multicast", "prefetch", "store", "reduce"}
        What the map is for; stores and reductions have further rules.
    arch : str, optional
        The GPU's target, such as "sm_100a": whether it has an instruction for the map is then
        checked, and a defect of drivers on it looked for.
    reduction : str
        What the direction "reduce" does with each element: "add", "min", "max", "inc", "dec",
        "and", "or" or "xor".
    **arguments
        Either the keyword arguments of `TiledMap`, `Im2colMap` or `Im2colWideMap`, or those of
        cuTensorMapEncodeTiled, -Im2col or -Im2colWide by the names of cuda.h, with arrays
        fastest-first and enumerations as names or numbers. Any integers are accepted.

    Returns
    -------
    list of Finding
        Errors come before warnings. An error is a broken rule with its field, value, range, source
        and a hint; a warning is legal but probably a mistake. A sound map has no findings. `fix`
        of a finding holds arguments that undo the mistake, where one is known.

    Raises
    ------
    ValueError
        `operator` or `direction` is unknown, or `arch` is no target.
    TypeError
        An argument belongs to no map, or is neither an integer nor a sequence of integers where it
        must be one.

    Examples
    --------
    >>> from implicit_conv import tma
    >>> for finding in tma.lint(shape=(64, 60), dtype="float16", box=(8, 60)):
    ...     print(finding.field, "=", finding.value, "but", finding.allowed)
    box[1] = 60 but its 120 bytes must be a multiple of 16
    """
    if direction not in DIRECTIONS:
        raise ValueError(f"direction {direction!r} is unknown; choose from {', '.join(DIRECTIONS)}")
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction {reduction!r} is unknown; choose from {', '.join(REDUCTIONS)}")
    if arch is not None:
        number_of(arch)
    if isinstance(map, TensorMap):
        given = Given(map.description, map.description.field, constructor_arguments)
    else:
        read = {**(map or {}), **arguments}
        read.pop("function", None)
        given = _read(read)
    if given.map is None:
        return given.findings
    start = None if coords is None else Start.of(coords, offsets, w_halo, w_offset, dst)
    lowerings = None
    if problem is not None:
        problem, _ = parse_problem(problem, None, {})
        lowerings = walks_of(problem, given.map.mode, operator)
    found = given.findings + Diagnosis(given, lowerings, direction, arch, reduction).of(
        given.map, start
    )
    return sorted(found, key=lambda finding: finding.severity != "error")


@dataclass(frozen=True)
class Given:
    """What the caller gave.

    Attributes
    ----------
    map : Description or None
        The map; None if too little could be read.
    name : function
        The caller's name of one of our fields.
    arguments : function
        The caller's arguments, by name, of a description.
    findings : list of Finding
        What is wrong with the form of the arguments.
    """

    map: Description | None
    name: Callable[[str], str]
    arguments: Callable[[Description], dict[str, Any]]
    findings: list[Finding] = field(default_factory=list)


def _read(given: Mapping[str, Any]) -> Given:
    """Arguments of any kind."""
    given = of_dump(given)
    if "globalDim" in given or "tensorDataType" in given or not set(given) - set(ARGUMENTS):
        _check_names(given)
        description, found = describe_arguments(with_integers(given))
        name = argument_name(description) if description else str
        return Given(description, name, map_arguments, found)
    kind = kind_of_map(given)
    known = {entry.name: entry for entry in fields(kind) if entry.init}
    unknown = set(given) - set(known)
    if unknown:
        names = ", ".join(sorted(unknown))
        raise TypeError(f"{kind.__name__} has no argument {names}; it has {', '.join(known)}")
    missing = [n for n, entry in known.items() if entry.default is MISSING and n not in given]
    if missing:
        findings = [Finding(name, None, "is missing", kind.__name__) for name in missing]
        return Given(None, str, constructor_arguments, findings)
    try:
        description = kind(**given).description
    except TensorMapError as refused:
        if refused.description is None:
            return Given(None, str, constructor_arguments, list(refused.findings))
        description = refused.description
    return Given(description, description.field, constructor_arguments)


def kind_of_map(given: Mapping[str, Any]) -> type[TiledMap | Im2colMap | Im2colWideMap]:
    """The class of map that has such arguments."""
    if "box" in given:
        return TiledMap
    return Im2colWideMap if "lower_corner_w" in given or "mode" in given else Im2colMap


def _check_names(given: Mapping[str, Any]) -> None:
    unknown = set(given) - set(ARGUMENTS)
    if unknown:
        raise TypeError(f"{', '.join(sorted(unknown))}: the driver's calls have no such argument")


def constructor_arguments(m: Description) -> dict[str, Any]:
    """The arguments of the map's class, but for the dtype, that give `m`."""
    names = ("shape", "swizzle", "oob_fill", "strides", "address", "interleave")
    common = {name: getattr(m, name) for name in names}
    if m.tiled:
        return {**common, "box": m.box, "step": m.step}
    common |= {"pixels_per_column": m.pixels, "channels_per_pixel": m.channels}
    if m.wide:
        corners = {"lower_corner_w": m.lower[0], "upper_corner_w": m.upper[0], "mode": m.mode}
        return {**common, **corners, "traversal_stride": m.step[0]}
    corners = {"lower_corner": m.lower, "upper_corner": m.upper}
    return {**common, **corners, "traversal_stride": m.step}


@dataclass(frozen=True)
class Diagnosis:
    """Findings of a map and a load, explained by slips and told in the caller's words."""

    given: Given
    lowerings: tuple[Lowering, ...] | None
    direction: str
    arch: str | None
    reduction: str

    def of(self, m: Description, start: Start | None) -> list[Finding]:
        """The findings; a single one if a single slip explains them all."""
        found = self.check(m, start)
        if not found:
            return []
        guesses = list(slips(m, start)) if m.rank in m.ranks else []
        causes = self._causes(guesses, m, start)
        if causes:
            one = _explained(found, causes[0], m, self.given.name)
            return [self._told(one, causes, m, start)]
        guesses = [*self._right_walk(m, start), *guesses]
        return [self._repaired(finding, found, guesses, m, start) for finding in found]

    def _causes(self, guesses: Sequence[Slip], m: Description, start: Start | None) -> list[Slip]:
        """The guesses that each explain everything. None may loosen the packing."""
        explaining = [
            slip
            for slip in guesses
            if packing(slip.map) >= packing(m) and not self.check(slip.map, slip.start)
        ]
        return told_apart(explaining)

    def check(self, m: Description, start: Start | None) -> list[Finding]:
        """Broken rules and suspicions, in our words."""
        found = map_findings(m)
        readable = not any(root(finding) in TENSOR for finding in found)
        if not found and start is not None:
            found += start_findings(m, start)
        if self.direction in ("store", "reduce") and readable:
            found += store_findings(m, start)
        if self.direction == "reduce" and readable:
            found += reduction_findings(m, self.reduction)
        differences = nearest(m, self.lowerings)[0] if self.lowerings else []
        if readable and (differences or not self.lowerings):
            wrong = {root(finding) for finding in found}
            found += [finding for finding in map_suspicions(m) if root(finding) not in wrong]
        if readable and self.arch is not None:
            found += target_findings(m, self.direction, self.arch)
            found += driver_suspicions(m, self.arch)
        if not _errors(found) and start is not None:
            found += start_suspicions(m, start, self.direction)
        if not _errors(found) and self.direction in ("store", "reduce"):
            found += store_suspicions(m, start)
        if self.lowerings and not found and not differences and start is not None:
            found += operand_findings(m, start, self.lowerings)
        wrong = {finding.field for finding in _errors(found)}
        return found + [finding for finding in differences if finding.field not in wrong]

    def _right_walk(self, m: Description, start: Start | None) -> list[Slip]:
        """The walk of the convolution, as a guess."""
        if self.lowerings is None or m.rank not in RANKS:
            return []
        _, lowering = nearest(m, self.lowerings)
        if m.rank != len(lowering.shape):
            return []
        return [Slip((), "", matching(m, lowering), start)]

    def _repaired(
        self,
        finding: Finding,
        found: Sequence[Finding],
        guesses: Sequence[Slip],
        m: Description,
        start: Start | None,
    ) -> Finding:
        """The finding with the fix of the first guess that removes it and breaks no other rule."""
        errors = {f.field for f in _errors(found)}
        removing = []
        for slip in guesses:
            if slip.kind == "whole" or (slip.fields and root(finding) not in slip.fields):
                continue
            left = self.check(slip.map, slip.start)
            gone = all(f.field != finding.field for f in left)
            if gone and errors.issuperset(f.field for f in _errors(left)):
                removing.append(slip)
        walk = [slip for slip in removing if not slip.fields]  # of the convolution
        causes = walk or told_apart(removing)
        if not causes:
            return self._told(finding, [], m, start)
        return self._told(replace(finding, hint=causes[0].text), causes, m, start, finding.hint)

    def _told(
        self,
        finding: Finding,
        causes: Sequence[Slip],
        m: Description,
        start: Start | None,
        words: str = "",
    ) -> Finding:
        """The finding in the caller's words; a cause is undone if it is sure and the only one."""
        told = replace(finding, hint=finding.hint or words or hint(m, finding))
        sure = len(causes) == 1 and is_sure(causes[0], m)
        mistakes = [slip for slip in causes if slip.fields and not sure]
        named = [f"{self.given.name(slip.fields[0])}: {slip.text}" for slip in mistakes]
        named += [formula] if (formula := hint(m, finding)) else []
        if mistakes and len(named) > 1 and causes[0].kind != "advice":
            told = replace(told, hint=f"either {', or '.join(named)}")
        for slip in causes if sure else ():
            before, after = self.given.arguments(m), self.given.arguments(slip.map)
            fix = {name: value for name, value in after.items() if value != before[name]}
            if start is not None and slip.start is not None:
                fix |= {
                    name: getattr(slip.start, name)
                    for name in OPERANDS
                    if getattr(slip.start, name) != getattr(start, name)
                }
            told = replace(told, fix=fix or None)
        whole = isinstance(told.value, tuple) and not told.field.endswith("]")
        if m.fastest_first and whole and told.field not in OPERANDS:
            told = replace(told, value=told.value[::-1])
        return replace(told, field=self.given.name(told.field))


def _explained(
    found: Sequence[Finding], slip: Slip, m: Description, name_of: Callable[[str], str]
) -> Finding:
    """The one finding that a slip which explains all of them leaves."""
    severity = "error" if _errors(found) else "warning"
    same = [f for f in found if f.severity == severity and root(f) in slip.fields]
    if same:
        own = same[0].hint if slip.kind == "advice" else ""
        return replace(same[0], hint=own or slip.text)
    first, name = found[0], slip.fields[0]
    value = (
        f"{m.itemsize} bytes" if name == "dtype" else getattr(m, ATTRIBUTES.get(name, name), None)
    )
    allowed = f"does not fit {name_of(first.field)} = {first.value}, which {first.allowed}"
    return Finding(name, value, allowed, first.source, slip.text, severity)


def root(finding: Finding) -> str:
    """The field of a finding without the letter of a dimension."""
    return finding.field.partition("[")[0]


def _errors(found: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in found if finding.severity == "error"]
