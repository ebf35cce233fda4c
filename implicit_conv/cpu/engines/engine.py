"""The CPU engine: it plans a request, explains the plan, packs filters and convolves."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

from implicit_conv.arrays.arrays import Array, Binding, numpy_dtype
from implicit_conv.arrays.integers import check_activation
from implicit_conv.cpu.candidates.candidate import Candidate, Formats, Method, Query, Request
from implicit_conv.cpu.candidates.problem_views import in_own_axes, spatial
from implicit_conv.cpu.engines.runner import Runner, parse_out_dtype
from implicit_conv.cpu.machine.arch import CpuArch, cpu_arch
from implicit_conv.cpu.plan import planner
from implicit_conv.cpu.plan.planner import Choice
from implicit_conv.cpu.run.call import (
    Arrays,
    Placed,
    bits,
    contiguous_strides,
    ordered_arrays,
)
from implicit_conv.cpu.run.packed import PackedFilter, PlainOrder
from implicit_conv.errors import PlanError
from implicit_conv.kernels.cpu.runtime.pool import new_array
from implicit_conv.kernels.cpu.runtime.program import Room, Step, array_at
from implicit_conv.kernels.geometry import Epilogue
from implicit_conv.problem.options import (
    ITEMSIZES,
    Activation,
    activation_kind,
    parse_activation,
)
from implicit_conv.problem.problem import Problem
from implicit_conv.problem.schedule import Load
from implicit_conv.process.cache import cached_property
from implicit_conv.process.preparation import imports, prepare

if TYPE_CHECKING:
    from implicit_conv.cpu.plan import tuning

LOG = logging.getLogger("implicit_conv")


@imports
def _explain() -> Any:
    from implicit_conv.cpu.plan.explain import explain

    return explain


@imports
def _facts_of() -> Any:
    from implicit_conv.cpu.plan.facts import facts_of

    return facts_of


@imports
def _tuning() -> Any:
    from implicit_conv.cpu.plan import tuning

    return tuning


@dataclass(frozen=True)
class CpuEngine(Runner):
    """The plan of one request on one CPU.

    Attributes
    ----------
    problem : Problem
    arch : CpuArch
    request : Request
        Precision, algorithm, whether subnormals are treated as zero, and the limit of memory.
    choice : Choice
        The candidates, of which `best` or, with packed filters, `best_packed` runs if it accepts
        the strides of the arrays, and the refusals.
    activation : (kind, low, high)
        As `parse_activation` returns it.
    out_dtype : str
        The dtype of results.
    """

    problem: Problem
    arch: CpuArch
    request: Request
    choice: Choice
    activation: tuple[float, float, float]
    out_dtype: str
    has_near_sizes: ClassVar[bool] = True  # whether `kinds` derives engines of near sizes
    methods: ClassVar[tuple[type[Method], ...] | None] = None  # None are all of convolutions

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy the plan with the CPU of this process, and without prepared calls, which
        hold addresses of this process.
        """
        values = (getattr(self, field.name) for field in fields(self))
        return _for_this_cpu, (type(self), cpu_arch(), *values)

    @cached_property
    def fallbacks(self) -> tuple[Candidate, ...]:
        """Candidates for strides that others do not accept.

        They are made on first use, because most arrays are contiguous.
        """
        limit, chosen = self.request.limit, self.choice.candidates
        found = (fallback for c in chosen for fallback in c.method.fallbacks(c, limit))
        new = (c for c in found if c.call_bytes() <= limit and c not in chosen)
        return tuple(dict.fromkeys(new))

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All candidates, in the order in which they are tried."""
        return tuple(self._in_order(self.best))

    @property
    def best(self) -> Candidate:
        """The candidate that runs if it accepts the strides of the arrays."""
        return self.choice.best

    @cached_property
    def best_packed(self) -> Candidate:
        """The candidate that runs with packed filters if it accepts the strides of the arrays."""
        return self.choice.best_packed

    @property
    def algorithm(self) -> str:
        """The algorithm of the best candidate."""
        return self.best.algorithm

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of x."""
        return self.problem.input_shape

    @property
    def w_shape(self) -> tuple[int, ...]:
        """The shape of w."""
        return self.problem.weight_shape

    @property
    def y_shape(self) -> tuple[int, ...]:
        """The shape of y."""
        return self.problem.output_shape

    @property
    def summed(self) -> Problem:
        """The problem itself."""
        return self.problem

    @property
    def formats(self) -> Formats:
        """The properties of compiled kernels that are not part of a candidate."""
        return Formats(self.y_dtype, self.request.flushes, compiler=self.request.compiler)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory of all threads, without the packed filter."""
        return max(self.best.workspace_bytes, self.best_packed.workspace_bytes)

    @property
    def packed_bytes(self) -> int:
        """Bytes of the packed filter."""
        return self.best_packed.packed.bytes

    @property
    def packed_key(self) -> tuple[object, ...]:
        """The key of packed filters that the plan reads."""
        return self.best_packed.packed.key

    @property
    def call_bytes(self) -> int:
        """Bytes of scratch memory and of the filter that a call with a plain filter packs, or of a
        call with a packed filter if it takes more.
        """
        return self.call_bytes_of(None)

    def call_bytes_of(self, w: Array | None) -> int:
        """`call_bytes` for a filter with the strides of `w`; see `Candidate.call_bytes`."""
        return max(self.best.call_bytes(w), self.best_packed.workspace_bytes)

    def explain(self) -> str:
        """The text of `Plan.explain`: the best candidate, then the table of all candidates."""
        choice = self.choice._replace(candidates=self.candidates)
        text: str = _explain()(self._problem_text(), choice, self.request, self.formats)
        return text

    def facts(self) -> dict[str, Any]:
        """The facts of `Plan.facts`."""
        choice = self.choice._replace(candidates=self.candidates)
        found: dict[str, Any] = _facts_of()(self._problem_text(), choice, self.request)
        return found

    def _problem_text(self) -> str:
        """The problem in the words of the operator."""
        return str(self.problem)

    def trace(self) -> list[Load]:
        """The loads of the best candidate for contiguous arrays."""
        return in_own_axes(self.problem, self.best.problem, self.best.method.loads(self.best))

    def pack(self, w: object) -> PackedFilter:
        """The filter `w` in the order that the best candidate for it reads; see `Plan.pack`."""
        array, c = bits(self.plain_filter(w)), self.best_packed
        return prepare(c.method.pack, c, array, self.formats)

    def tuned(self, filters: str, arrays: tuple[Array, Array, Array] | None = None) -> CpuEngine:
        """The plan with its fastest candidate first, measured with `arrays` (x, w, y) or with
        contiguous ones; see `Plan.tune`.
        """
        tuning = _tuning()
        packs = tuning.parse_filters(filters)
        if math.prod(self.y_shape) == 0:
            return self
        return replace(self, choice=tuning.tuned(*self.trials(packs, arrays), packs))

    def trials(
        self, packs: bool = True, arrays: tuple[Array, Array, Array] | None = None
    ) -> tuple[Query, tuning.Run]:
        """What was planned, and a function that makes a call of a candidate; its filter is packed
        before the call if `packs`.
        """
        x, w, y = arrays or self._examples()
        binding = Binding(x.strides, w.strides, y.strides)
        view = None if arrays is None else self._arrays(Placed(x, w, y))

        def run(c: Candidate) -> Callable[[], object]:
            one = replace(self, choice=Choice((c,), ()))
            if not packs:
                call = one.bind(binding)
                return lambda: call(x, w, None, y)
            packed = one.pack(w)  # the function keeps it alive: its operand is an address
            call = one.bind(binding._replace(w=None))
            return lambda: call(x, packed.operand, None, y)

        query = Query(self.best.problem, self.arch, self.request, view, self.methods)
        return query, run

    def _examples(self) -> tuple[Array, Array, Array]:
        """Arrays (x, w, y) to measure with."""
        problem, tuning = self.problem, _tuning()
        x = tuning.example(self.x_shape, problem.dtype, 0)
        w = tuning.example(self.w_shape, problem.filter_dtype, 1)
        return x, w, new_array(self.y_shape, numpy_dtype(self.y_dtype), x.ctypes.data)

    def _arrays(self, of: Placed) -> Arrays:
        """The arrays of a call as methods take them."""
        view, w, axes = self.best.problem, of.w, None
        order = self.best_packed.packed if w is None else None
        if isinstance(order, PlainOrder):
            strides = contiguous_strides(order.shape, ITEMSIZES[order.dtype])
            w = array_at(of.panels, order.shape, numpy_dtype(order.dtype), strides)
            axes = order.axes
        return ordered_arrays(view, of.x, w, of.y, of.residual, of.panels, axes)

    def steps(self, of: Placed, room: Room) -> list[Step]:
        """Those of the first candidate that accepts the strides.

        Raises
        ------
        PlanError
            There is none.
        """
        arrays = self._arrays(of)
        first = self.best_packed if of.w is None else self.best
        order = self._in_order(first)
        candidate = next((c for c in order if self._takes(c, of, arrays)), None)
        if candidate is None and self.choice.near:  # other methods were not asked
            return self.searched().steps(of, room)
        if candidate is None:
            raise self._refusal(of, arrays)
        if candidate is not first:
            needs = first.method.needs
            LOG.debug("%s runs, because %s needs %s", candidate.name, first.name, needs)
        end, steps = room.end, candidate.method.steps

        def made() -> list[Step]:  # perhaps twice
            room.end = end
            return steps(candidate, arrays, self._epilogue(of), self.formats, room)

        found: list[Step] = prepare(made)
        return found

    def searched(self) -> CpuEngine:
        """The plan with the candidates of all methods."""
        query = Query(self.best.problem, self.arch, self.request, None, self.methods)
        return replace(self, choice=planner.estimated(query))

    def _epilogue(self, of: Placed) -> Epilogue:
        """What a call does to sums: with a scale, it adds the bias too."""
        return Epilogue(self.activation, of.biased and not of.scaled, of.scaled)

    def _takes(self, c: Candidate, of: Placed, arrays: Arrays) -> bool:
        """Whether a candidate can compute `arrays` of these strides."""
        reads = arrays.w is not None or c.packed.key == self.best_packed.packed.key
        serves = c.method.serves.takes(self._epilogue(of), of.residual is not None)
        return reads and serves and c.method.accepts(c, arrays)

    def _refusal(self, of: Placed, arrays: Arrays) -> PlanError:
        """The error where no candidate takes the strides: for lack of memory, or for what else was
        given.
        """
        names, request = " and ".join(self.names), self.request
        needs = self.best.method.needs
        because = f", because {self.best.name} needs {needs}" if needs else ""
        query = Query(self.best.problem, self.arch, request, arrays, self.methods)
        least = planner.least_workspace(query)
        if request.max_workspace is not None and least > request.max_workspace:
            return PlanError(
                f"max_workspace is {request.max_workspace} bytes, but {names} of these strides "
                f"need {least}{because}; pass contiguous arrays, max_workspace={least}, or None "
                "for no limit"
            )
        given = {
            "packed filter": of.w is None,
            "bias": of.biased,
            "scale": of.scaled,
            "residual": of.residual is not None,
        }
        found = [name for name, is_given in given.items() if is_given]
        ways = ["contiguous arrays"] * bool(needs) + [f"no {name}" for name in found]
        return PlanError(
            f"no method takes {names} of these strides{''.join(f' and a {name}' for name in found)}"
            f"{because}; pass {' or '.join(ways)}"
        )

    def _in_order(self, first: Candidate) -> Iterator[Candidate]:
        """All candidates in the order in which they are tried; fallbacks are made if the `first`
        one cannot run.
        """
        yield first
        others = [c for c in self.choice.candidates if c is not first]
        yield from sorted((*others, *self.fallbacks), key=lambda candidate: candidate.cycles)


def plan(
    problem: Problem,
    arch: CpuArch,
    request: Request,
    *,
    activation: Activation = None,
    out_dtype: object = None,
    arrays: Arrays | None = None,
) -> CpuEngine:
    """Plan a request, for `arrays` of these strides or for contiguous ones.

    Raises
    ------
    PlanError, DTypeError
        The precision, algorithm, activation or out_dtype is unknown, or is not supported for this
        problem.
    """
    out_dtype = parse_out_dtype(out_dtype, problem)
    if problem.is_integer:
        check_activation(activation, out_dtype)
        problem = replace(problem, wide=out_dtype in ("int64", "float64"))
    parsed = parse_activation(activation)
    request = replace(request, activation=activation_kind(parsed))
    choice = planner.plan(spatial(problem, request.precision), arch, request, arrays)
    best = choice.best
    LOG.debug("%s: %s on %d threads", problem, best.name, best.threads)
    return CpuEngine(problem, arch, request, choice, parsed, out_dtype)


def _for_this_cpu(
    kind: type[CpuEngine],
    before: CpuArch,
    problem: Problem,
    arch: CpuArch,
    request: Request,
    choice: Choice,
    *options: Any,
) -> CpuEngine:
    """The plan of a pickle or a copy, made anew if this is not the CPU `before` that pickled it.

    The same CPU with other threads keeps the plan, so that it takes filters packed for it.
    """
    if replace(cpu_arch(), threads=before.threads) != before:
        arch = cpu_arch(None if arch.threads == before.threads else arch.threads)
        choice = prepare(planner.plan, choice.best.problem, arch, request, methods=kind.methods)
    return kind(problem, arch, request, choice, *options)
