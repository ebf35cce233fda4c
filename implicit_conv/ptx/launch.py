"""One kernel over a grid: clusters one after the other, warps in turns that a seed draws.

Asynchronous copies arrive when the seed says so. A launch in which nothing can move any more is a
deadlock, and reported, never waited for.
"""

from __future__ import annotations

import math
import random
import time

import numpy as np
from numpy.typing import NDArray

from implicit_conv.ptx import limits
from implicit_conv.ptx.errors import UNFORESEEN, LaunchError, PtxError, shortened
from implicit_conv.ptx.kinds import LANES, Lanes
from implicit_conv.ptx.machine.cluster import Cluster
from implicit_conv.ptx.machine.cta import Pending
from implicit_conv.ptx.machine.warp import Warp
from implicit_conv.ptx.machine.watch import TensorCopy, Watch, WatchReads
from implicit_conv.ptx.memory.global_memory import MAP_BYTES, Buffer, Memory
from implicit_conv.ptx.memory.shared_layout import odd_multiple, place_shared
from implicit_conv.ptx.memory.spaces import PARAM_BASE, WINDOW_BYTES, WINDOWS
from implicit_conv.ptx.memory.tensor_map import TensorMap
from implicit_conv.ptx.memory.traffic import Traffic
from implicit_conv.ptx.syntax import Instruction, Kernel
from implicit_conv.ptx.text.code import Code

LIMIT = 50_000_000  # warp instructions of a launch
SLOW_WARPS = 0.3  # chance of a warp to run only when no other can, or one time in twenty
HASTE = 0.95
TURN = 24  # blocks of a turn, at most
LONG_TURN = 1000  # of one after a wait that gave up: enough to come back to a wait
ARRIVALS = 0.3  # chance after a turn that a copy comes a step further
IDLE_TURNS = 200  # turns of waits that give up, with nothing else to do, that make a deadlock
MAP_ALIGNMENT = 64


class Launch:
    """A launch and, afterwards, what it has counted.

    Parameters
    ----------
    kernel : Kernel
        As `parse` returns it.
    parameters : bytes
        All parameters, laid out as the kernel declares them.
    memory : Memory
        What the addresses among the parameters lead to.
    grid, block : (x, y, z)
        Blocks, and threads of a block.
    cluster : (x, y, z), optional
        Blocks of a cluster, where the text does not say it.
    names : dict of offset in dynamic shared memory -> str, optional
        Regions and mbarriers, for messages.
    seconds : float
        Time after which a launch is stopped, by default never; it is compared before each turn of a
        warp.
    shared_bytes, shared_alignment, seed, flaky, unfenced_barriers, strict, limit
        Those of `run`.
    watch, watch_reads, traffic
        Those of `run`.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import ptx
    >>> text = '''.version 8.0
    ... .target sm_80
    ... .address_size 64
    ... .visible .entry one(.param .u64 x) {
    ...     .reg .b64 %a;
    ...     ld.param.u64 %a, [x];
    ...     st.global.u32 [%a], 1;
    ...     ret;
    ... }'''
    >>> memory, x = ptx.Memory(), np.zeros(4, np.uint32)
    >>> parameters = memory.put(x).to_bytes(8, "little")
    >>> launch = ptx.Launch(ptx.parse(text), parameters=parameters, memory=memory,
    ...                     grid=(1, 1, 1), block=(1, 1, 1)).run()
    >>> launch.executed, x.tolist()
    (3, [1, 0, 0, 0])
    """

    def __init__(
        self,
        kernel: Kernel,
        *,
        parameters: bytes,
        memory: Memory,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        cluster: tuple[int, int, int] | None = None,
        shared_bytes: int = 0,
        shared_alignment: int = 0,
        names: dict[int, str] | None = None,
        seed: int = 0,
        flaky: float = 0.0,
        unfenced_barriers: bool = False,
        strict: bool = False,
        watch: Watch | None = None,
        watch_reads: WatchReads | None = None,
        traffic: Traffic | None = None,
        limit: int = LIMIT,
        seconds: float = math.inf,
    ) -> None:
        self.kernel, self.memory, self.grid, self.block = kernel, memory, grid, block
        self.code = code_of(kernel)
        self.threads = block[0] * block[1] * block[2]
        self.dynamic_bytes = shared_bytes
        self.shared_bytes = self.code.spaces.static_bytes + shared_bytes
        self.random, self.flaky, self.limit = random.Random(seed), flaky, limit
        self.leader = self.random.randrange(LANES)  # of elect.sync
        self.unfenced_barriers, self.strict, self.watch = unfenced_barriers, strict, self._watched
        self._watch = watch or (lambda copy: None)
        self.watch_reads = watch_reads
        self.constants: list[tuple[int, int]] = []  # first address and end of each .const variable
        self.foreign: Exception | None = None  # that the caller's function has raised
        self.traffic = traffic
        if len(parameters) != kernel.parameter_bytes:
            raise PtxError(
                f"{len(parameters)} bytes of parameters, but {kernel.name} takes "
                f"{kernel.parameter_bytes}"
            )
        self._check_sizes()
        self.cluster = self._cluster(cluster)
        self.is_explicit_cluster = cluster is not None or kernel.cluster is not None
        self.seconds, self.stop = seconds, math.inf  # the latter by time.monotonic
        if kernel.max_threads is not None and self.threads > kernel.max_threads:
            raise PtxError(f"{self.threads} threads, but .maxntid is {kernel.max_threads}")
        self.parameters = np.frombuffer(parameters, np.uint8).copy()
        self.shared = place_shared(kernel.variables, shared_bytes, shared_alignment, seed)
        first = self.shared.dynamic
        self.names = {first + offset: name for offset, name in (names or {}).items()}
        self.variables = self._place_variables()
        self.constant: dict[int, NDArray[np.bool_]] = {}  # bytes of buffers read by ld.global.nc
        self.written: dict[int, NDArray[np.uint8]] = {}  # times that bytes of buffers were written
        self.unreleased_maps: set[int] = set()  # addresses of tensor maps, replaced in place
        self.executed = self.divergences = self.turns = 0

    def run(self) -> Launch:
        """Run all clusters.

        Raises
        ------
        PtxError
            The kernel does what PTX leaves undefined, or can never end.
        """
        X, Y, Z = (n // size for n, size in zip(self.grid, self.cluster, strict=True))
        self.stop = time.monotonic() + self.seconds
        with np.errstate(all="ignore"):
            for index in ((x, y, z) for z in range(Z) for y in range(Y) for x in range(X)):
                self._run_cluster(Cluster(self, index))
        if self.traffic is not None:
            self.traffic.instructions += self.executed
        return self

    def _run_cluster(self, cluster: Cluster) -> None:
        draw, warps, pending = self.random, cluster.warps, cluster.pending
        slow = {warp for warp in warps if draw.random() < SLOW_WARPS}
        idle = 0
        while not all(warp.done for warp in warps):
            ready = [warp for warp in warps if warp.ready()]
            polling = [warp for warp in warps if warp.polls()]
            impatient = bool(polling) and draw.random() < self.flaky
            if not ready and pending:
                self._arrive(pending)
                continue
            if not ready:
                idle += 1
                if not polling or idle > IDLE_TURNS:
                    raise PtxError(f"{cluster}: deadlock:\n{_stuck(cluster)}")
                impatient = True
            else:
                idle = 0
            quick = [w for w in ready if w not in slow] if draw.random() < HASTE else []
            warp = draw.choice(polling if impatient else quick or ready)
            self._turn(cluster, warp, impatient)
            while pending and draw.random() < ARRIVALS:
                self._arrive(pending)
        for copy in pending:
            while not copy.step():
                pass
        for cta in cluster.blocks:
            unseen = cta.unseen()
            if unseen:
                raise PtxError(f"{cta}: the kernel ends, but {unseen}")

    def _turn(self, cluster: Cluster, warp: Warp, impatient: bool) -> None:
        self.turns += 1
        late = time.monotonic() > self.stop
        if self.executed > self.limit or late:
            spent = f"{self.seconds:g} seconds" if late else f"{self.limit} instructions"
            way_out = f"a loop without end? If not, raise {'seconds' if late else 'limit'}="
            raise PtxError(f"{cluster}: more than {spent}: {way_out}\n{_stuck(cluster)}")
        try:
            warp.turn(LONG_TURN if impatient else self.random.randrange(1, TURN), impatient)
        except UNFORESEEN as error:
            if error is self.foreign:
                raise
            raise self._located(error, warp) from error

    def _watched(self, copy: TensorCopy) -> None:
        """Tell the caller's function of a copy; its errors are the caller's own."""
        try:
            self._watch(copy)
        except Exception as error:
            self.foreign = error
            raise

    def _arrive(self, pending: list[Pending]) -> None:
        """Some copy comes a step further."""
        at = self.random.randrange(len(pending))
        try:
            complete = pending[at].step()
        except UNFORESEEN as error:
            if error is self.foreign:
                raise
            raise PtxError(f"{pending[at].w.cta}: a copy arrives: {error}") from error
        if complete:
            del pending[at]

    # -- what instructions ask for ---------------------------------------------------------------

    def map_at(self, address: int) -> TensorMap:
        """The tensor map at a generic address."""
        if address % MAP_ALIGNMENT:
            raise PtxError(f"the tensor map at {address:#x} is not aligned to {MAP_ALIGNMENT}")
        if WINDOWS["param"] <= address < WINDOWS["param"] + WINDOW_BYTES:
            at = address - WINDOWS["param"] - PARAM_BASE
            self._move_map(at)
            data = self.parameters[max(at, 0) : at + MAP_BYTES].tobytes()
        else:
            data = self.memory.bytes(address, MAP_BYTES).tobytes()
        if len(data) != MAP_BYTES:
            raise PtxError(f"no tensor map lies at {address:#x}")
        return self.memory.decode(data)

    def may_change(self, address: int) -> bool:
        """Whether a kernel, or a copy by the host, may write to an address: parameters and
        constants are written before a launch alone.
        """
        constant = any(start <= address < end for start, end in self.constants)
        return not (constant or WINDOWS["param"] <= address < WINDOWS["param"] + WINDOW_BYTES)

    def _move_map(self, at: int) -> None:
        """Let the map of a struct that was given as a map lie where its first copy looks for it."""
        for start, size in [*self.memory.structs.items()]:
            if start <= at and at + MAP_BYTES <= start + size:
                del self.memory.structs[start]
                data = self.parameters[start : start + MAP_BYTES].copy()
                self.parameters[start : start + MAP_BYTES] = 0
                self.parameters[at : at + MAP_BYTES] = data

    def variable(self, name: str) -> Lanes:
        """The address of a variable of the module."""
        if name not in self.variables:
            raise PtxError(f"{shortened(name)} is not declared")
        return self.variables[name]

    def note_constant(self, at: Lanes, size: int) -> None:
        """Lanes read bytes by ``ld.global.nc``: nobody may write them in this launch (9.7.9)."""
        for _, buffer, cells in self.memory.places(at, size):
            if buffer.address in self.written:
                if self.written[buffer.address][cells].any():
                    raise PtxError("ld.global.nc of bytes that this launch has written")
            if buffer.address not in self.constant:
                self.constant[buffer.address] = np.zeros(buffer.data.size, bool)
            self.constant[buffer.address][cells] = True

    def note_cells(self, buffer: Buffer, cells: Lanes) -> None:
        """Cells of a buffer are written."""
        if buffer.address not in self.written:
            self.written[buffer.address] = np.zeros(buffer.data.size, np.uint8)
        count = self.written[buffer.address]
        count[cells] = np.minimum(count[cells], 254) + 1
        if buffer.address in self.constant and self.constant[buffer.address][cells].any():
            raise PtxError("st.global to bytes that ld.global.nc reads in this launch")

    def has_written(self, address: int, size: int) -> bool:
        """Whether the launch has written any of these bytes of a buffer."""
        for start, written in self.written.items():
            at = address - start
            if 0 <= at < written.size:
                return bool(written[at : at + size].any())
        return False

    def note_store(self, address: int, size: int) -> None:
        """Contiguous bytes are written."""
        for _, buffer, cells in self.memory.places(np.array([address]), size):
            self.note_cells(buffer, cells)

    # -- messages ----------------------------------------------------------------------------------

    def _located(self, error: Exception, warp: Warp) -> PtxError:
        """The error with the line of the PTX at which it happened."""
        instruction: Instruction | None = None
        trace = error.__traceback__
        while trace:
            lines = self.code.lines.get(trace.tb_frame.f_code.co_filename)
            if lines is not None:
                instruction = lines.get(trace.tb_lineno)
            trace = trace.tb_next
        instruction = instruction or warp.instruction
        place = instruction.place if instruction else "?"
        known = isinstance(error, PtxError)
        words = str(error) if known else f"its operands do not fit: {shortened(repr(error))}"
        return PtxError(f"{warp.cta}: {warp}, {place}\n  {words}")

    def _check_sizes(self) -> None:
        """Raise PtxError unless the grid and the blocks are of a size that hardware takes."""
        for what, sizes, most in (
            ("a block", self.block, limits.BLOCK),
            ("the grid", self.grid, limits.GRID),
        ):
            if any(not 1 <= size <= top for size, top in zip(sizes, most, strict=True)):
                raise PtxError(f"{what} of {sizes}: at least 1 and at most {most} along x, y, z")
        if self.threads > limits.MOST_THREADS:
            raise PtxError(f"{self.threads} threads; a block has at most {limits.MOST_THREADS}")
        static, room = self.code.spaces.static_bytes, limits.SPACE_BYTES["shared"]
        if not 0 <= self.dynamic_bytes <= room - static:
            raise PtxError(
                f"{static} bytes of shared memory and {self.dynamic_bytes} dynamic ones; "
                f"a block has at most {room}"
            )

    def _cluster(self, given: tuple[int, int, int] | None) -> tuple[int, int, int]:
        """The blocks of a cluster: those of the text or of the launch, or one."""
        declared = self.kernel.cluster
        said = declared if declared and all(declared) else None
        size = given or said or (1, 1, 1)
        if declared and not (given or said):
            raise LaunchError(".explicitcluster without .reqnctapercluster: give cluster=")
        if given and said and given != said:
            raise LaunchError(f"cluster={given}, but .reqnctapercluster is {said}")
        if math.prod(size) > limits.CLUSTER:
            raise LaunchError(f"a cluster of {size}: at most {limits.CLUSTER} blocks")
        if any(n % part for n, part in zip(self.grid, size, strict=True)):
            raise LaunchError(f"the grid {self.grid} is not divisible by the cluster {size}")
        return size

    def _place_variables(self) -> dict[str, Lanes]:
        """Put .global and .const variables into memory; the addresses of all but local ones."""
        found = {
            name: np.full(LANES, address, np.uint64)
            for name, address in self.shared.addresses.items()
        }
        for made in self.kernel.variables:
            if made.space in ("global", "const"):
                data = np.zeros(max(made.size, 1), np.uint8)
                data[: len(made.data)] = np.frombuffer(made.data, np.uint8)
                offset = odd_multiple(made.align, self.memory.next) - self.memory.next
                address = self.memory.put(data, offset)
                if made.space == "const":
                    self.constants.append((address, address + made.size))
                found[made.name] = np.full(LANES, address, np.uint64)
        return found


def _stuck(cluster: Cluster) -> str:
    return "\n".join(filter(None, (cta.stuck() for cta in cluster.blocks)))


def code_of(kernel: Kernel) -> Code:
    """The kernel's code, translated once."""
    code: Code | None = getattr(kernel, "_code", None)
    if code is None:
        code = Code(kernel)
        kernel._code = code  # type: ignore[attr-defined]
    return code
