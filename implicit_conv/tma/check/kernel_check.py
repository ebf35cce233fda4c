"""Check the tensor copies of a kernel: run its PTX, and compare each copy with the laboratory.

The interpreter has a model of tensor copies of its own, which knows only the arguments of the
driver's calls. It and this package's simulator must agree on every byte of shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
from implicit_conv.tma.check.kernel_report import CheckedCopy, KernelReport
from implicit_conv.tma.check.linter import lint
from implicit_conv.tma.check.mistaken_sums import find_mistake
from implicit_conv.tma.check.readers import Readers, source_place
from implicit_conv.tma.check.service import Coverage, Service
from implicit_conv.tma.check.untouched import Touched
from implicit_conv.tma.maps.limits import Finding, Start, TensorMapError
from implicit_conv.tma.maps.maps import TensorMap
from implicit_conv.tma.maps.tiled import TiledMap
from implicit_conv.tma.run.lowering_choice import Shapes, parse_problem
from implicit_conv.tma.run.simulate import Array, walk
from implicit_conv.tma.show.image import smem_image

Size = int | tuple[int, ...]


class MapArgument(NamedTuple):
    """A tensor map as an argument of a kernel.

    Parameters
    ----------
    map : TiledMap, Im2colMap or Im2colWideMap
        The map that is meant.
    array : C-contiguous array of map.shape and map.dtype
        The tensor.
    encoded : mapping, optional
        The arguments of the cuTensorMapEncode call that the program makes, as `log_maps` writes
        them; by default those of the map.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import tma
    >>> tile = tma.TiledMap(shape=(16, 16), dtype="float32", box=(8, 8))
    >>> argument = tma.MapArgument(tile, np.ones(tile.shape, tile.dtype))
    >>> argument.map.row_bytes, argument.encoded
    (32, None)
    """

    map: TensorMap
    array: Array
    encoded: Mapping[str, Any] | None = None


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
        One for each parameter: a `MapArgument` for a tensor map, else as in `ptx.run`; members of a
        struct, too. The kernel writes into its arrays.
    problem, operator : Problem or two shapes as in `maps_for`, and {"fprop", "dgrad", "wgrad"}
        The convolution that the kernel computes. Loads by maps of the walked tensor's shape are
        then matched with its taps and output pixels.
    expected : dict of int -> array, optional
        What arguments hold afterwards, by their numbers.
    tolerance : float
        The largest difference of floats, relative to the largest number that is expected.
    **options
        As in `ptx.run`: cluster, shared_bytes, shared_alignment, entry, seed, flaky,
        unfenced_barriers, strict, limit, seconds.

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

    Examples
    --------
    This kernel ends before its copy has come to an end:

    >>> import numpy as np
    >>> from implicit_conv import tma
    >>> text = '''.version 8.6
    ... .target sm_90a
    ... .address_size 64
    ... .visible .entry load(.param .align 64 .b8 map[128]) {
    ...     .reg .b32 %r<3>; .reg .b64 %d;
    ...     .shared .align 128 .b8 tile[256]; .shared .align 8 .b8 full[8];
    ...     mov.b64 %d, map; cvta.param.u64 %d, %d;
    ...     mov.u32 %r1, tile; mov.u32 %r2, full;
    ...     mbarrier.init.shared::cta.b64 [%r2], 1;
    ...     fence.mbarrier_init.release.cluster;
    ...     mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 256;
    ...     cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
    ...         [%r1], [%d, {4, 2}], [%r2];
    ...     ret;
    ... }'''
    >>> tile = tma.TiledMap(shape=(16, 16), dtype="float32", box=(8, 8))
    >>> argument = tma.MapArgument(tile, np.ones(tile.shape, tile.dtype))
    >>> report = tma.check_kernel(text, grid=1, block=1, arguments=[argument])
    >>> report.copies[0].start.coords
    (2, 4)
    >>> print(report.error)
    block 0: the kernel ends, but nobody has waited for a copy ...
    """
    coverage = None
    if problem is not None:
        problem, _ = parse_problem(problem, None, {})
        coverage = Coverage(problem, operator)
    everything = dict(_members(arguments))
    given = {n: a for n, a in everything.items() if isinstance(a, MapArgument)}
    for number, argument in everything.items():
        if isinstance(argument, (TensorMap, ptx.Tensor)):
            kind = type(argument).__name__
            raise ValueError(f"argument {number}: pass MapArgument(map, array), not the {kind}")
    watcher = _Watcher(given, coverage, target)
    passed = [
        {at: watcher.tensors.get(_member(n, at), each) for at, each in argument.items()}
        if isinstance(argument, Mapping)
        else watcher.tensors.get(n, argument)
        for n, argument in enumerate(arguments)
    ]
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
    outputs = [] if error else list(_differing(arguments, expected or {}, tolerance))
    if outputs and coverage:
        entry = options.get("entry")
        outputs += watcher.mistakes(text, entry, everything, expected or {}, tolerance)
    return KernelReport(
        copies=tuple(watcher.checked(copy) for copy in watcher.copies),
        findings={n: findings for n, findings in found.items() if findings},
        readers=tuple(watcher.readers.lines(text, options.get("entry"), bool(outputs))),
        outputs=tuple(outputs),
        missing=coverage.missing() if coverage and not error else (),
        untouched=() if error else tuple(watcher.untouched()),
        error=error,
    )


def _member(number: int, offset: int) -> str:
    """The name of a member of a struct."""
    return f"{number} at byte {offset}"


def _members(arguments: Sequence[Any]) -> Iterator[tuple[int | str, Any]]:
    """The arguments by their numbers, and the members of those that are structs."""
    for number, argument in enumerate(arguments):
        if isinstance(argument, Mapping):
            yield from ((_member(number, at), each) for at, each in argument.items())
        else:
            yield number, argument


class _Watcher:
    """Receives the copies of a run; looks at shared memory as soon as one is complete."""

    def __init__(
        self, given: dict[int | str, MapArgument], coverage: Coverage | None, target: str | None
    ) -> None:
        self.given, self.coverage, self.target = given, coverage, target
        self.tensors = {n: _tensor(argument, n) for n, argument in given.items()}
        self.copies: list[ptx.TensorCopy] = []
        self.differences: dict[int, str] = {}  # by id of the copy
        self.services: dict[int, tuple[Service, ...]] = {}
        self.touched: dict[tuple[int | str, str], Touched] = {}  # by argument and direction
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
            if not wrong and number is not None and isinstance(map, TiledMap):
                key = number, copy.direction
                self.touched.setdefault(key, Touched(map)).add(start)
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

    def _map(self, copy: ptx.TensorCopy) -> tuple[int | str | None, TensorMap]:
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
            destination=copy.destination,
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

    def untouched(self) -> Iterator[str]:
        """A line for each map whose copies leave out a part of its tensor."""
        for (number, direction), touched in self.touched.items():
            if parts := list(touched.missing()):
                yield f"map {number}: none of its copies {direction}s {', '.join(parts)}"

    def mistakes(
        self,
        text: str,
        entry: str | None,
        everything: Mapping[int | str, Any],
        expected: Mapping[int, Array],
        tolerance: float,
    ) -> Iterator[str]:
        """A line for each output of the problem that one mistake explains."""
        firsts = dict[int | str, ptx.TensorCopy]()  # load of each argument's map
        for copy in self.copies:
            if copy.direction == "load" and isinstance(copy.map, NumberedMap):
                firsts.setdefault(copy.map.argument, copy)
        found = self.coverage and [n for n in firsts if self.coverage.serves(self.given[n].map)]
        if not found or not self.coverage or not self.coverage.sums:
            return
        walked = found[0]
        x, first = self.given[walked], firsts[walked]
        served = (self.services.get(id(copy)) for copy in self.copies if copy.block == first.block)
        taps = list(dict.fromkeys(services[0].tap for services in served if services))
        arrays = {n: array for n, a in everything.items() if (array := _array(a)) is not None}
        for number, wanted in expected.items():
            mistake = find_mistake(
                self.coverage.lowerings,
                x.map,
                x.array,
                {n: a for n, a in arrays.items() if n not in (walked, number)},
                wanted,
                arrays[number],
                lambda a, b: not _unlike(a, b, tolerance).any(),
                sorted(taps) in (taps, taps[::-1]),
            )
            if mistake:
                filter, words, of_filter = mistake
                line = (firsts.get(filter, first) if of_filter else first).line
                at = next(i for i in ptx.parse(text, entry).instructions if i.line == line)
                yield f"argument {number} is what {words}; the copy is at {source_place(at)}"

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
        array = _array(arguments[number])
        if array is None:
            raise ValueError(f"expected[{number}]: the argument is no array")
        if array.shape != wanted.shape:
            raise ValueError(
                f"expected[{number}] has shape {wanted.shape}, but the argument {array.shape}"
            )
        wrong = _unlike(array, wanted, tolerance)
        if wrong.any():
            at = tuple(int(x) for x in np.argwhere(wrong)[0])
            yield (
                f"argument {number}: {int(wrong.sum())} of {wrong.size} elements differ from those "
                f"expected; the first is {at}: {float(array[at]):g} instead of "
                f"{float(wanted[at]):g}"
            )


def _unlike(array: Array, wanted: Array, tolerance: float) -> npt.NDArray[np.bool_]:
    """Which elements differ."""
    found, right = array.astype(np.float64), wanted.astype(np.float64)
    limit = tolerance * float(np.abs(right).max(initial=0)) if wanted.dtype.kind != "i" else 0
    return ~(np.abs(found - right) <= limit) & ~(np.isnan(found) & np.isnan(right))


def _array(argument: Any) -> Array | None:
    """The array of an argument, if it has one."""
    found = argument.array if isinstance(argument, MapArgument) else argument
    return found if isinstance(found, np.ndarray) else None


def _tensor(argument: MapArgument, number: int | str) -> ptx.Tensor:
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
