"""The watchdog build of a kernel: its waits give up, and record where.

It is made of the kernel's PTX. A wait for an mbarrier that fails `polls` times writes {block,
thread, offset of the barrier in shared memory, parity} to a table in global memory, and its thread
exits. So a kernel that would never end does end, its context lives on, and the table can be read.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from implicit_conv.kernels.gpu.sizes import WARP

POLLS = 1 << 22  # failed polls of a wait on a GPU; each takes at most HINT nanoseconds
HINT = 1000
NAME = "watchdog"  # the table: the number of records, three unused words, the records
RECORDS = 1000
WORDS = 4  # of a record: block, thread, offset of the barrier, parity
TABLE_BYTES = 4 * WORDS * (1 + RECORDS)
DECLARATION = f".visible .global .align 16 .b8 {NAME}[{TABLE_BYTES}];"
HEADER = re.compile(r"^\.address_size 64$", re.MULTILINE)
WAIT = re.compile(
    r"\{ \.reg \.pred P; LAB_WAIT: (mbarrier\.(?:try|test)_wait\S+) P, \[(%r\d+)\], (%r\d+); "
    r"@P bra DONE; bra LAB_WAIT; DONE: \}"
)


def with_watchdog(text: str, polls: int = POLLS) -> str:
    """The PTX of a kernel whose waits give up after `polls` polls.

    Raises
    ------
    ValueError
        The text has no wait, or one in a form that is not known.
    """
    found, count = WAIT.subn(lambda wait: _bounded(wait[1], wait[2], wait[3], polls), text)
    if count == 0 or count != text.count("LAB_WAIT:"):
        raise ValueError(f"{count} of {text.count('LAB_WAIT:')} waits of the PTX have a known form")
    return HEADER.sub(f".address_size 64\n{DECLARATION}", found, count=1)


def _bounded(instruction: str, barrier: str, parity: str, polls: int) -> str:
    hint = f", {HINT}" if ".try_wait" in instruction else ""
    base = "dynamic_shared"
    return f"""{{ .reg .pred P, M; .reg .b32 n, i, b, t, o; .reg .b64 at, to;
mov.u32 n, 0;
LAB_WAIT: {instruction} P, [{barrier}], {parity}{hint};
@P bra DONE;
add.u32 n, n, 1;
setp.lt.u32 M, n, {polls};
@M bra LAB_WAIT;
mov.u64 at, {NAME};
atom.global.add.u32 i, [at], 1;
setp.ge.u32 M, i, {RECORDS};
@M bra LEAVE;
mov.u32 b, %ctaid.x;
mov.u32 t, %tid.x;
mov.u32 o, {base};
sub.u32 o, {barrier}, o;
mul.wide.u32 to, i, {4 * WORDS};
add.s64 at, at, to;
st.global.v4.u32 [at+{4 * WORDS}], {{b, t, o, {parity}}};
LEAVE: exit;
DONE: }}"""


def records(table: NDArray[np.uint8], regions: dict[int, str]) -> list[str]:
    """What warps waited for when they gave up; `regions` names the barriers.

    Blocks whose warps waited alike share a line.
    """
    words = table.view(np.uint32).reshape(-1, WORDS)
    count = min(int(words[0, 0]), RECORDS)
    warps: dict[tuple[int, str], set[int]] = {}  # by (block, what for)
    for block, thread, offset, parity in words[1 : 1 + count].tolist():
        what = f"parity {parity} of {regions.get(offset, f'the barrier at offset {offset}')}"
        warps.setdefault((block, what), set()).add(thread // WARP)
    blocks: dict[tuple[str, str], list[int]] = {}  # by (warps, what for)
    for (block, what), numbers in sorted(warps.items()):
        blocks.setdefault((_listed("warp", sorted(numbers)), what), []).append(block)
    return [
        f"{_listed('block', numbers)}: {who} gave up waiting for {what}"
        for (who, what), numbers in blocks.items()
    ]


def _listed(noun: str, numbers: list[int]) -> str:
    return f"{noun}{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
