"""Run a kernel from its text: what users call."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from implicit_conv.ptx.errors import LaunchError, shortened
from implicit_conv.ptx.launch import LIMIT, Launch, code_of
from implicit_conv.ptx.limits import SECONDS
from implicit_conv.ptx.machine.watch import Watch, WatchReads
from implicit_conv.ptx.memory.global_memory import MAP_BYTES, Memory
from implicit_conv.ptx.memory.tensor_map import TensorMap
from implicit_conv.ptx.memory.traffic import Traffic
from implicit_conv.ptx.syntax import Kernel
from implicit_conv.ptx.targets import check_target
from implicit_conv.ptx.text.blocks import parse

Size = int | tuple[int, ...]
FLOATS = {2: "f2", 4: "f4", 8: "f8"}  # numpy kinds of floats, by bytes


class Tensor(NamedTuple):
    """A tensor map as an argument: the map's address is that of `array`.

    Parameters
    ----------
    map : TensorMap
        The map, whatever its address.
    array : C-contiguous array
        The tensor, which the kernel reads and writes.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import ptx
    >>> x = np.zeros((16, 16), np.float32)
    >>> tile = ptx.TensorMap("tile", 4, 0, (16, 16), (64,), (1, 1), box=(8, 8))
    >>> argument = ptx.Tensor(tile, x)  # of `run`
    >>> argument.map.row_bytes
    32
    """

    map: TensorMap
    array: np.ndarray


class Report(NamedTuple):
    """What a run has counted.

    Attributes
    ----------
    instructions : int
        Warp instructions that were executed.
    divergences : int
        Branches at which the lanes of a warp parted.
    not_run : tuple of int
        Lines of the text whose instructions were never executed.
    """

    instructions: int
    divergences: int
    not_run: tuple[int, ...]


def run(
    text: str,
    grid: Size,
    block: Size,
    arguments: Sequence[Any],
    target: str | None = None,
    *,
    cluster: Size | None = None,
    shared_bytes: int = 0,
    shared_alignment: int = 0,
    entry: str | None = None,
    seed: int = 0,
    flaky: float = 0.0,
    unfenced_barriers: bool = False,
    strict: bool = False,
    watch: Watch | None = None,
    watch_reads: WatchReads | None = None,
    traffic: Traffic | None = None,
    limit: int = LIMIT,
    seconds: float = SECONDS,
) -> Report:
    """Run a kernel on numpy arrays, which it changes in place, without a GPU.

    Parameters
    ----------
    text : str
        A PTX module.
    grid, block : int or tuple of up to three int
        Blocks, and threads of a block. Clusters run one after the other, so a kernel in which one
        waits for another does not end.
    arguments : sequence
        One for each parameter: a C-contiguous array (its address is passed; all its members to a
        kernel of Numba, which has a parameter for each), an int, a float, bytes
        (a struct by value), a `Tensor` (128 bytes by value, a longer struct with the map where the
        first copy looks for it, or the address of a map), None (a null pointer), or a struct by its
        members: a mapping from offsets, in bytes, to arrays, Tensors, None, bytes and numpy
        scalars.
    target : str, optional
        The GPU, such as "sm_90a"; by default the one in the text.
    cluster : int or tuple of up to three int, optional
        Blocks of a cluster, which run together; at most eight. By default those that the text asks
        for by ``.reqnctapercluster``, or one.
    shared_bytes : int
        Dynamic shared memory of a block.
    shared_alignment : int
        Alignment of dynamic shared memory, bytes, where it is more than the declared one. Triton
        declares 16 and counts on 1,024, where a kernel without static shared memory has it.
    entry : str, optional
        The kernel's name, where the text has several.
    seed : int
        Draws the order in which warps run and copies arrive, and that of shared variables. Each
        of these lies at an odd multiple of its declared alignment, because hardware promises it no
        more, and dynamic shared memory comes last.
    flaky : float
        Chance of a ``mbarrier.try_wait`` to give up early, as the PTX ISA allows.
    unfenced_barriers : bool
        Accept copies that complete on an mbarrier with no ``fence.mbarrier_init`` or
        ``fence.proxy.async`` since its initialisation, which Triton leaves out.
    strict : bool
        Also refuse what ordinary kernels do and the ISA leaves undefined: several warps, or lanes
        of one, that write the same values to the same bytes, or float32 ones that differ by
        rounding alone, with no barrier in between.
    watch : function of a TensorCopy, optional
        Called when a tensor copy is issued, before its operands are checked, and again when it is
        complete.
    watch_reads : function of a SharedRead, optional
        Called when ``wgmma`` or ``ldmatrix`` reads a matrix from shared memory, or all lanes of a
        warp read by ``ld.shared``.
    traffic : Traffic, optional
        Counts sectors of global memory and passes of the banks of shared memory.
    limit : int
        Warp instructions after which a run counts as endless.
    seconds : float
        Time after which a run is stopped, 60 by default. What comes before, reading the text, is
        bounded by the sizes that `limits` states.

    Raises
    ------
    UnsupportedError
        The text uses an instruction, modifier or directive that is not covered; it names it.
    PtxError
        The kernel does what the PTX ISA leaves undefined, such as a race, or can never end.

    Examples
    --------
    >>> import numpy as np
    >>> from implicit_conv import ptx
    >>> text = '''.version 8.0
    ... .target sm_80
    ... .address_size 64
    ... .visible .entry double(.param .u64 x) {
    ...     .reg .b64 %a<3>; .reg .b32 %i, %v;
    ...     ld.param.u64 %a1, [x];
    ...     mov.u32 %i, %tid.x;
    ...     mad.wide.u32 %a2, %i, 4, %a1;
    ...     ld.global.u32 %v, [%a2];
    ...     add.u32 %v, %v, %v;
    ...     st.global.u32 [%a2], %v;
    ...     ret;
    ... }'''
    >>> x = np.arange(4, dtype=np.uint32)
    >>> ptx.run(text, grid=1, block=4, arguments=[x])
    Report(instructions=7, divergences=0, not_run=())
    >>> x.tolist()
    [0, 2, 4, 6]
    """
    kernel = parse(text, entry)
    if target is not None:
        check_target(kernel.target, target)
    code_of(kernel).check()
    memory = Memory()
    launch = Launch(
        kernel,
        parameters=pack(kernel, arguments, memory),
        memory=memory,
        grid=_three(grid),
        block=_three(block),
        cluster=None if cluster is None else _three(cluster),
        shared_bytes=shared_bytes,
        shared_alignment=shared_alignment,
        seed=seed,
        flaky=flaky,
        unfenced_barriers=unfenced_barriers,
        strict=strict,
        watch=watch,
        watch_reads=watch_reads,
        traffic=traffic,
        limit=limit,
        seconds=seconds,
    ).run()
    idle = {i.line for b in kernel.blocks if not b.runs for i in b.instructions}
    return Report(launch.executed, launch.divergences, tuple(sorted(idle)))


def pack(kernel: Kernel, arguments: Sequence[Any], memory: Memory) -> bytes:
    """The parameters of a launch; arrays are put into memory."""
    members = numba_members(arguments)
    if len(members) == len(kernel.parameters):
        arguments = members
    if len(arguments) != len(kernel.parameters):
        names, count = ", ".join(kernel.parameters) or "none", len(kernel.parameters)
        raise LaunchError(
            f"{len(arguments)} arguments for the parameters {shortened(names)}; give {count}, one "
            "for each in this order"
        )
    data, places = bytearray(kernel.parameter_bytes), dict[int, int]()
    given = zip(kernel.parameters.items(), arguments, strict=True)
    for (name, (offset, size)), argument in given:
        word = _word(argument, size, memory, places)
        if isinstance(argument, Tensor) and size > MAP_BYTES:
            memory.structs[offset] = size
        if len(word) != size:
            raise LaunchError(
                f"the parameter {shortened(name)} has {size} bytes, the argument {len(word)}"
            )
        data[offset : offset + size] = word
    return bytes(data)


def numba_members(arguments: Sequence[Any]) -> list[Any]:
    """The arguments with arrays by their members, each of which Numba makes a parameter."""
    spread: list[Any] = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            sizes = argument.size, argument.itemsize
            spread += [None, None, *sizes, argument, *argument.shape, *argument.strides]
        else:
            spread.append(argument)
    return spread


def _word(argument: Any, size: int, memory: Memory, places: dict[int, int]) -> bytes:
    """The bytes of an argument for a parameter of `size` bytes."""
    word: bytes
    if argument is None:
        word = bytes(size)
    elif isinstance(argument, bytes):
        word = argument
    elif isinstance(argument, Mapping):
        word = _struct(argument, size, memory, places)
    elif isinstance(argument, np.ndarray):
        word = _address(argument, memory, places).to_bytes(8, "little")
    elif isinstance(argument, Tensor):
        address = _address(argument.array, memory, places)
        word = memory.encode(replace(argument.map, address=address))
        if size < len(word):  # the parameter is the address of a map
            table = np.frombuffer(word, np.uint8).copy()
            word = memory.put(table).to_bytes(8, "little")
        word = word.ljust(size, b"\0")  # of a struct that begins with a map
    elif isinstance(argument, (float, np.floating)):
        if size not in FLOATS:
            raise LaunchError(f"the argument {argument} for a parameter of {size} bytes: no float")
        word = np.array([argument], FLOATS[size]).tobytes()
    else:
        word = (operator.index(argument) % (1 << 8 * size)).to_bytes(size, "little")
    return word


def _struct(members: Mapping[int, Any], size: int, memory: Memory, places: dict[int, int]) -> bytes:
    """A struct of `size` bytes with members at offsets; what is between them is zeros."""
    data = bytearray(size)
    for offset, member in members.items():
        kinds = {np.ndarray: 8, Tensor: MAP_BYTES, type(None): 8}
        given = member.tobytes() if isinstance(member, np.generic) else member
        word = _word(given, kinds.get(type(given), 0), memory, places)
        if not word or not 0 <= offset <= size - len(word):
            raise LaunchError(
                f"the member {shortened(repr(member))} at byte {offset} of a struct of {size}: "
                "give an array, a Tensor, None, bytes or a numpy scalar that lies inside it"
            )
        data[offset : offset + len(word)] = word
    return bytes(data)


def _address(array: np.ndarray, memory: Memory, places: dict[int, int]) -> int:
    """Where an array lies; the same array always lies at the same place."""
    if id(array) not in places:
        places[id(array)] = memory.put(array)
    return places[id(array)]


def _three(size: Size) -> tuple[int, int, int]:
    parts = (size,) if isinstance(size, int) else tuple(size)
    x, y, z = (*parts, 1, 1, 1)[:3]
    if min(x, y, z) < 1 or len(parts) > 3:
        raise LaunchError(f"the size {size} is not one to three positive numbers")
    return int(x), int(y), int(z)
