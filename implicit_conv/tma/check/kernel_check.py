"""Check the tensor copies of a kernel: run its PTX, and compare each copy with the laboratory.

The interpreter has a model of tensor copies of its own, which knows only the arguments of the
driver's calls. It and this package's simulator must agree on every byte of shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from implicit_conv import ptx
from implicit_conv.problem.problem import Problem
from implicit_conv.tma.check.interpreted import (
    NumberedMap,
    call_findings,
    difference,
    interpreted_map,
    made_map,
    start_of,
)
from implicit_conv.tma.check.linter import lint
from implicit_conv.tma.check.readers import Readers
from implicit_conv.tma.check.service import Coverage, Missing, Service
from implicit_conv.tma.maps.limits import Finding, Start, TensorMapError
from implicit_conv.tma.maps.maps import TensorMap
from implicit_conv.tma.run.lowering_choice import Shapes, parse_problem
from implicit_conv.tma.run.simulate import Array, Walk, walk
from implicit_conv.tma.show.image import smem_image

Size = int | tuple[int, ...]
LISTED = 24  # copies without a finding that a printed report lists
HEADS = "|block|warp|line||mode|map|start|offsets|shared|bytes|filled|smem".split("|")


class MapArgument(NamedTuple):
    """A tensor map as an argument of a kernel.

    Attributes
    ----------
    map : TiledMap, Im2colMap or Im2colWideMap
        The map that is meant.
    array : C-contiguous array of map.shape and map.dtype
        The tensor.
    encoded : mapping, optional
        The arguments of the cuTensorMapEncode call that the program makes, as `log_maps` writes
        them; by default those of the map.
    """

    map: TensorMap
    array: Array
    encoded: Mapping[str, Any] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class CheckedCopy:
    """One tensor copy of a kernel, in the order in which they were issued.

    Attributes
    ----------
    block : (x, y, z)
    warp, line : int
        The warp that issued it, and the line of the PTX text.
    direction, mode : str
        "load" or "store", and the mode as the instruction names it.
    argument : int or None
        Which argument of the kernel its map is; None for a map that the kernel has made.
    start : Start
        `coords`, `offsets`, `w_halo`, `w_offset` as `walk` takes them; `dst`, a shared address.
    walk : Walk or None
        The pixels and bytes that it copies; None if it breaks a rule.
    complete : bool
        Whether it came to an end.
    difference : str or None
        How shared memory differs from `smem_image`: empty where both agree, None for a store or a
        map that the kernel has made, or where the copy breaks a rule or never came to an end.
    findings : tuple of Finding
        What `lint` has to say of the instruction.
    serves : tuple of Service, or None
        Taps and output pixels of the problem that it loads input for; None if there is no problem,
        if its map is for another tensor, or if it never came to an end.
    """

    block: tuple[int, int, int]
    warp: int
    line: int
    direction: str
    mode: str
    argument: int | None
    start: Start
    walk: Walk | None
    complete: bool
    difference: str | None
    findings: tuple[Finding, ...]
    serves: tuple[Service, ...] | None

    def cells(self, number: int) -> tuple[str, ...]:
        """The line of the copy in a table."""
        start, walk = self.start, self.walk
        offsets = "" if start.offsets is None else str(start.offsets)
        if self.mode.startswith("im2col::w"):
            offsets = f"{start.w_halo}, {start.w_offset}"
        block = self.block[0] if self.block[1:] == (0, 0) else self.block
        smem = "-" if self.difference is None else "differs" if self.difference else "agrees"
        counts = ("-", "-") if walk is None else (walk.bytes, int(walk.filled.sum()))
        served = [str(service) for service in self.serves or ()]
        if len(served) > 1:
            served = [f"{len(served)} taps, the first is {served[0]}"]
        of = "made" if self.argument is None else self.argument
        issued = number, block, self.warp, self.line, self.direction, self.mode, of
        moved = start.coords, offsets, f"{start.dst:#x}", *counts, smem, *served
        return tuple(map(str, issued + moved))


@dataclass(frozen=True, eq=False, kw_only=True)
class KernelReport:
    """What `check_kernel` has found; `str` of it is a table.

    Attributes
    ----------
    copies : tuple of CheckedCopy
    findings : dict of int -> tuple of Finding
        What is wrong with the map of an argument, or unlike the call that encodes it.
    readers : tuple of str
        What reads shared memory unlike the copy that wrote it.
    outputs : tuple of str
        Arguments that differ from the expected arrays.
    missing : tuple of Missing
        Input of the problem that no load has delivered; empty without a problem, and after an
        error.
    error : str
        What stopped the run, with block, warp and line; empty if it came to an end.
    """

    copies: tuple[CheckedCopy, ...]
    findings: dict[int, tuple[Finding, ...]]
    readers: tuple[str, ...]
    outputs: tuple[str, ...]
    missing: tuple[Missing, ...]
    error: str

    @property
    def problems(self) -> list[str]:
        """A line for each thing that is wrong; equal lines of several copies are one."""
        lines = [f"map {n}: {f}" for n, found in self.findings.items() for f in found]
        places: dict[str, list[int]] = {}
        for number, copy in enumerate(self.copies):
            said = [str(finding) for finding in copy.findings]
            said += ["it serves no tap of the problem"] if copy.serves == () else []
            for text in said:
                places.setdefault(text, []).append(number)
        differing = [number for number, copy in enumerate(self.copies) if copy.difference]
        if differing:  # in other bytes each, but by one cause
            places[self.copies[differing[0]].difference or ""] = differing
        for text, numbers in places.items():
            others = f" and {len(numbers) - 1} others" if numbers[1:] else ""
            line = self.copies[numbers[0]].line
            lines.append(f"copy {numbers[0]} (line {line}){others}: {text}")
        lines += [*self.readers, *self.outputs]
        lines += [f"not loaded: {missing}" for missing in self.missing]
        return lines + ([f"the run stopped: {self.error}"] if self.error else [])

    def __str__(self) -> str:
        wrong = [n for n, copy in enumerate(self.copies) if copy.findings or copy.difference]
        listed = sorted({*range(min(LISTED, len(self.copies))), *wrong[:LISTED]})
        rows = [HEADS, *(self.copies[number].cells(number) for number in listed)]
        widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(len(HEADS))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=False))
            for row in rows
        ]
        if len(listed) < len(self.copies):
            lines.append(f"... {len(self.copies)} copies in all")
        return "\n".join(
            [line.rstrip() for line in lines] + (self.problems or ["nothing is wrong"])
        )


def check_kernel(
    text: str,
    grid: Size,
    block: Size,
    arguments: Sequence[Any],
    target: str | None = None,
    *,
    problem: Problem | Shapes | None = None,
    operator: str = "fprop",
    expected: Mapping[int, Array] | None = None,
    tolerance: float = 1e-3,
    **options: Any,
) -> KernelReport:
    """Run a kernel in the PTX interpreter, and say what each of its tensor copies moves.

    Parameters
    ----------
    text, grid, block, target
        As in `ptx.run`.
    arguments : sequence
        One for each parameter: a `MapArgument` for a tensor map, else as in `ptx.run`. The kernel
        writes into its arrays.
    problem, operator : Problem or two shapes as in `maps_for`, and {"fprop", "dgrad", "wgrad"}
        The convolution that the kernel computes. Loads by maps of the walked tensor's shape are
        then matched with its taps and output pixels.
    expected : dict of int -> array, optional
        What arguments hold afterwards, by their numbers.
    tolerance : float
        The largest difference of floats, relative to the largest number that is expected.
    **options
        As in `ptx.run`: shared_bytes, shared_alignment, entry, seed, flaky, unfenced_barriers,
        limit, seconds.

    Returns
    -------
    KernelReport
        A kernel that does what PTX leaves undefined is not an error here: the report has the copies
        up to there, and `error`.

    Raises
    ------
    ptx.UnsupportedError
        The text uses what the interpreter does not cover; it names it.
    ValueError
        An array does not fit its map, or the interpreter does not model the map.
    """
    coverage = None
    if problem is not None:
        problem, _ = parse_problem(problem, None, {})
        coverage = Coverage(problem, operator)
    given = {n: a for n, a in enumerate(arguments) if isinstance(a, MapArgument)}
    for number, argument in enumerate(arguments):
        if isinstance(argument, (TensorMap, ptx.Tensor)):
            kind = type(argument).__name__
            raise ValueError(f"argument {number}: pass MapArgument(map, array), not the {kind}")
    watcher = _Watcher(given, coverage, target)
    passed = [watcher.tensors.get(n, argument) for n, argument in enumerate(arguments)]
    error = ""
    try:
        reads = watcher.readers.read
        ptx.run(text, grid, block, passed, target, watch=watcher, watch_reads=reads, **options)
    except (ptx.LaunchError, ptx.UnsupportedError):
        raise
    except ptx.PtxError as wrong:
        error = str(wrong)
    found = {}
    for n, a in given.items():
        walked = problem if coverage and coverage.walks(a.map) else None
        of_map = lint(a.map, problem=walked, operator=operator, arch=target)
        found[n] = (*of_map, *call_findings(a.map, a.encoded or {}))
    outputs = () if error else tuple(_differing(arguments, expected or {}, tolerance))
    return KernelReport(
        copies=tuple(watcher.checked(copy) for copy in watcher.copies),
        findings={n: findings for n, findings in found.items() if findings},
        readers=tuple(watcher.readers.lines(text, options.get("entry"), bool(outputs))),
        outputs=outputs,
        missing=coverage.missing() if coverage and not error else (),
        error=error,
    )


class _Watcher:
    """Receives the copies of a run; looks at shared memory as soon as one is complete."""

    def __init__(
        self, given: dict[int, MapArgument], coverage: Coverage | None, target: str | None
    ) -> None:
        self.given, self.coverage, self.target = given, coverage, target
        self.tensors = {n: _tensor(argument, n) for n, argument in given.items()}
        self.copies: list[ptx.TensorCopy] = []
        self.differences: dict[int, str] = {}  # by id of the copy
        self.services: dict[int, tuple[Service, ...]] = {}
        self.readers = Readers()
        self.linted: dict[tuple[Any, ...], tuple[Finding, ...]] = {}

    def __call__(self, copy: ptx.TensorCopy) -> None:
        if copy.contents is None:
            self.copies.append(copy)
            return
        if copy.direction == "load":
            self.readers.wrote(copy)
        try:
            number, map = self._map(copy)
            start, wrong = start_of(map, copy)
            if wrong or copy.direction == "store":
                return
            if number is not None:
                array = self.given[number].array
                image = smem_image(map, array, start.coords, start.dst, *start.operands[1:])
                self.differences[id(copy)] = difference(image, copy)
            if self.coverage and self.coverage.serves(map):
                walked = walk(map, *start.operands)
                served = self.coverage.add(map, walked, start.coords[-1], start.offsets)
                self.services[id(copy)] = served
        except TensorMapError:  # the findings will say so
            return

    def _map(self, copy: ptx.TensorCopy) -> tuple[int | None, TensorMap]:
        """(which argument the map of a copy is, or None if the kernel has made it; the map)."""
        if isinstance(copy.map, NumberedMap):
            return copy.map.argument, self.given[copy.map.argument].map
        return None, made_map(copy.map)

    def checked(self, copy: ptx.TensorCopy) -> CheckedCopy:
        """The copy with what was found."""
        number, walked, wrong = None, None, list[Finding]()
        start = Start(copy.coordinates[::-1], dst=copy.address)
        try:
            number, map = self._map(copy)
            start, wrong = start_of(map, copy)
            if not wrong:
                wrong = list(self._lint(map, start, copy.direction))
                walked = walk(map, *start.operands)
        except TensorMapError as error:
            wrong = wrong or list(error.findings)
        return CheckedCopy(
            block=copy.block,
            warp=copy.warp,
            line=copy.line,
            direction=copy.direction,
            mode=copy.mode,
            argument=number,
            start=start,
            walk=walked,
            complete=copy.contents is not None,
            difference=self.differences.get(id(copy)),
            findings=tuple(wrong),
            serves=self.services.get(id(copy)),
        )

    def _lint(self, map: TensorMap, start: Start, direction: str) -> tuple[Finding, ...]:
        """Findings of a copy that are not those of its map alone."""
        key = map, start, direction
        if key not in self.linted:
            found = lint(map, **vars(start), direction=direction, arch=self.target)
            alone = lint(map, arch=self.target)
            self.linted[key] = tuple(finding for finding in found if finding not in alone)
        return self.linted[key]


def _differing(
    arguments: Sequence[Any], expected: Mapping[int, Array], tolerance: float
) -> Iterator[str]:
    """A line for each argument that differs from what is expected."""
    for number, wanted in expected.items():
        argument = arguments[number]
        array = argument.array if isinstance(argument, MapArgument) else argument
        if array.shape != wanted.shape:
            raise ValueError(
                f"expected[{number}] has shape {wanted.shape}, but the argument {array.shape}"
            )
        found, right = array.astype(np.float64), wanted.astype(np.float64)
        limit = tolerance * float(np.abs(right).max(initial=0)) if wanted.dtype.kind != "i" else 0
        wrong = ~(np.abs(found - right) <= limit) & ~(np.isnan(found) & np.isnan(right))
        if wrong.any():
            at = tuple(int(x) for x in np.argwhere(wrong)[0])
            yield (
                f"argument {number}: {int(wrong.sum())} of {wrong.size} elements differ from those "
                f"expected; the first is {at}: {found[at]:g} instead of {right[at]:g}"
            )


def _tensor(argument: MapArgument, number: int) -> ptx.Tensor:
    """The argument as the interpreter takes it."""
    map, array = argument.map, argument.array
    packed = array.flags.c_contiguous and map.strides in (None, array.strides[:-1])
    if (array.shape, array.dtype) != (map.shape, map.dtype) or not packed:
        raise ValueError(
            f"argument {number}: a {array.dtype} array of shape {array.shape} and strides "
            f"{array.strides} for a map of {map.dtype} {map.shape}; pass a C-contiguous array of "
            "the map's shape and dtype, and a map of a packed tensor"
        )
    return ptx.Tensor(interpreted_map(argument.encoded or map.arguments, number), array)
