"""Instructions -> basic blocks, and the blocks where lanes that part meet again."""

from __future__ import annotations

import re

from implicit_conv.ptx.body import Body, Item, Label
from implicit_conv.ptx.joins import find_joins
from implicit_conv.ptx.module import Module, read_module
from implicit_conv.ptx.syntax import Block, Instruction, Kernel, Target

# Opcodes that end a block, because a warp may branch, wait or end there.
CONTROL = (
    "bra", "ret", "exit", "trap", "bar", "barrier", "setmaxnreg", "mbarrier.try_wait",
    "mbarrier.test_wait", "cp.async.wait_group", "cp.async.wait_all", "cp.async.bulk.wait_group",
)  # fmt: skip


def is_control(opcode: list[str]) -> bool:
    """Whether an instruction ends its block."""
    name = ".".join(opcode)
    return any(name == head or name.startswith(f"{head}.") for head in CONTROL)


def parse(text: str, entry: str | None = None) -> Kernel:
    """The kernel of a module's text: the entry of this name, or the only one.

    Raises
    ------
    PtxError
        The text is malformed, or uses what the interpreter does not cover.
    """
    module = read_module(text)
    function = module.entry(entry)
    body = Body(module, function)
    parameters, offset = {}, 0
    for formal in function.formals:
        offset = -(-offset // formal.align) * formal.align
        parameters[formal.name] = offset, formal.size
        offset += formal.size
    return Kernel(
        name=function.name,
        target=module.target,
        parameters=parameters,
        parameter_bytes=offset,
        variables=body.variables,
        max_threads=_max_threads(module, function.header),
        registers=body.registers,
        blocks=make_blocks(body),
    )


def _max_threads(module: Module, header: str) -> int | None:
    match = re.search(r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", header)
    if match is None:
        return None
    return int(match[1]) * int(match[2] or 1) * int(match[3] or 1)


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
        closed = is_control(item.opcode)
    if blocks[-1].instructions and closed:
        blocks.append(Block(len(blocks)))  # a label at the end, or nothing
    for block in blocks:
        last = block.instructions[-1] if block.instructions else None
        if last and last.opcode[0] == "bra":
            target = starts[branches[id(last)]]
            last.operands = [Target(target)]
            block.targets.append(target)
        ends = last is not None and last.opcode[0] in ("bra", "ret", "exit", "trap")
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
