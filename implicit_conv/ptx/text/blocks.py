"""Instructions -> basic blocks, and the blocks where lanes that part meet again."""

from __future__ import annotations

import math
import re

from implicit_conv.ptx import limits
from implicit_conv.ptx.errors import PtxError, UnsupportedError, shortened
from implicit_conv.ptx.syntax import Block, Instruction, Kernel, Target
from implicit_conv.ptx.text.body import ENDS, Body, Item, Label
from implicit_conv.ptx.text.joins import find_joins
from implicit_conv.ptx.text.module import number, read_module

# Opcodes that end a block, because a warp may branch, wait or end there.
CONTROL: dict[str, list[list[str]]] = {
    **{name: [] for name in (*ENDS, "bar", "barrier", "setmaxnreg")},
    "mbarrier": [["try_wait"], ["test_wait"]],
    "cp": [["async", "wait_group"], ["async", "wait_all"], ["async", "bulk", "wait_group"]],
}


def is_control(opcode: list[str]) -> bool:
    """Whether an instruction ends its block."""
    tails = CONTROL.get(opcode[0])
    return tails is not None and (not tails or any(opcode[1 : len(t) + 1] == t for t in tails))


def parse(text: str, entry: str | None = None) -> Kernel:
    """The kernel of a module's text: the entry of this name, or the only one.

    Parameters
    ----------
    text : str
        A PTX module.
    entry : str, optional
        The kernel's name, where the text has several.

    Returns
    -------
    kernel : Kernel
        What `Launch` takes: name, target, parameters (offset and bytes of each), shared variables,
        and blocks of instructions.

    Raises
    ------
    UnsupportedError
        The text uses a directive that is not covered; instructions are looked up by `Launch`.
    PtxError
        The text is malformed, or larger than the limits.

    Examples
    --------
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
    >>> kernel = ptx.parse(text)
    >>> kernel.name, kernel.parameters
    ('one', {'x': (0, 8)})
    """
    module = read_module(text)
    function = module.entry(entry)
    body = Body(module, function)
    parameters, offset = {}, 0
    for formal in function.formals:
        offset = -(-offset // formal.align) * formal.align
        parameters[formal.name] = offset, formal.size
        offset += formal.size
    if offset > limits.PARAMETER_BYTES:
        raise PtxError(
            f"line {function.line}: {shortened(function.name)} takes {offset} bytes of parameters; "
            f"{limits.PARAMETER_BYTES} is the most"
        )
    return Kernel(
        name=function.name,
        target=module.target,
        parameters=parameters,
        parameter_bytes=offset,
        variables=body.variables,
        max_threads=_max_threads(function.header, f"line {function.line}"),
        cluster=_cluster(function.header, f"line {function.line}"),
        registers=body.registers,
        blocks=make_blocks(body),
    )


def _max_threads(header: str, place: str) -> int | None:
    found = re.search(r"\.(?:maxntid|reqntid)\s+(\d+(?:\s*,\s*\d+){0,2})", header)
    if found is None:
        return None
    return math.prod(number(part.strip(), place) for part in found[1].split(","))


def _cluster(header: str, place: str) -> tuple[int, int, int] | None:
    """The blocks of a cluster that the header asks for; zeros if the launch must say it."""
    if ".blocksareclusters" in header:
        raise UnsupportedError(f"{place}: the directive .blocksareclusters is not covered")
    found = re.search(r"\.reqnctapercluster\s+(\d+(?:\s*,\s*\d+){0,2})", header)
    if found is None:
        return (0, 0, 0) if ".explicitcluster" in header else None
    sizes = [number(part.strip(), place) for part in found[1].split(",")]
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def make_blocks(body: Body) -> list[Block]:
    """The blocks of a body; branches name blocks instead of labels."""
    blocks, starts = [Block(0)], dict[Label, int]()
    items, branches = _unguarded(body)
    closed = False
    for item in items:
        label = isinstance(item, Label)
        if blocks[-1].instructions and (label or closed):
            blocks.append(Block(len(blocks)))
        if isinstance(item, Label):
            starts[item] = len(blocks) - 1
            closed = False
            continue
        blocks[-1].instructions.append(item)
        full = len(blocks[-1].instructions) == limits.BLOCK_INSTRUCTIONS
        closed = full or is_control(item.opcode)
    if blocks[-1].instructions and closed:
        blocks.append(Block(len(blocks)))  # a label at the end, or nothing
    for block in blocks:
        last = block.instructions[-1] if block.instructions else None
        if last and last.opcode[0] == "bra":
            target = starts[branches[id(last)]]
            last.operands = [Target(target)]
            block.targets.append(target)
        ends = last is not None and last.opcode[0] in ENDS
        if (not ends or (last and last.guard)) and block.index + 1 < len(blocks):
            block.targets.append(block.index + 1)
    find_joins(blocks)
    return blocks


def _unguarded(body: Body) -> tuple[list[Item], dict[int, Label]]:
    """The items, with a branch around each control instruction that is guarded."""
    items, branches = list[Item](), dict(body.branches)
    for item in body.items:
        guarded = isinstance(item, Instruction) and item.guard and is_control(item.opcode)
        if not guarded or not isinstance(item, Instruction) or item.opcode[0] == "bra":
            items.append(item)
            continue
        assert item.guard is not None
        register, negated = item.guard
        around = Label()
        skip = Instruction(["bra"], [], (register, not negated), item.line, item.text, item.source)
        branches[id(skip)] = around
        item.guard = None
        items += [skip, item, around]
    return items, branches
