"""What was found of the tensor copies of a kernel, as values and as a table."""

from __future__ import annotations

from dataclasses import dataclass

from implicit_conv.tma.check.service import Missing, Service
from implicit_conv.tma.maps.limits import Finding, Start
from implicit_conv.tma.run.simulate import Walk

LISTED = 24  # copies without a finding that a printed report lists
HEADS = "|block|warp|line||mode|map|start|offsets|shared|bytes|filled|smem".split("|")


@dataclass(frozen=True, eq=False, kw_only=True)
class CheckedCopy:
    """One tensor copy of a kernel, in the order in which they were issued.

    Attributes
    ----------
    block : (x, y, z)
    warp, line : int
        The warp that issued it, and the line of the PTX text.
    destination : (x, y, z)
        The block whose shared memory it touches; a multicast is a copy for each block that its mask
        names.
    direction, mode : str
        "load" or "store", and the mode as the instruction names it.
    argument : int, str or None
        Which argument of the kernel its map is, or which member, such as "0 at byte 64"; None for
        a map that the kernel has made.
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
    destination: tuple[int, int, int]
    direction: str
    mode: str
    argument: int | str | None
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
        block = _place(self.block)
        if self.destination != self.block:
            block += f" to {_place(self.destination)}"
        smem = "-" if self.difference is None else "differs" if self.difference else "agrees"
        counts = ("-", "-") if walk is None else (walk.bytes, int(walk.filled.sum()))
        served = [str(service) for service in self.serves or ()]
        if len(served) > 1:
            served = [f"{len(served)} taps, the first is {served[0]}"]
        of = "made" if self.argument is None else self.argument
        issued = number, block, self.warp, self.line, self.direction, self.mode, of
        moved = start.coords, offsets, f"{start.dst:#x}", *counts, smem, *served
        return tuple(map(str, issued + moved))


def _place(block: tuple[int, int, int]) -> str:
    return str(block if any(block[1:]) else block[0])


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
    untouched : tuple of str
        Parts of tensors that no copy by their tiled map loads or stores, as slices of numpy; among
        `problems` only where `outputs` differ, and empty after an error.
    error : str
        What stopped the run, with block, warp and line; empty if it came to an end.
    """

    copies: tuple[CheckedCopy, ...]
    findings: dict[int | str, tuple[Finding, ...]]
    readers: tuple[str, ...]
    outputs: tuple[str, ...]
    missing: tuple[Missing, ...]
    untouched: tuple[str, ...]
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
        lines += self.untouched if self.outputs else ()
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
