"""The launchable operators of weight gradients: one sums, one adds the sums of parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.runtime.compiled.entry import Blob, fields, next_item
from implicit_conv.kernels.cpu.runtime.compiled.source import Source, entry
from implicit_conv.kernels.cpu.wgrad.compiled.sums import add_sums


def operator(sum_item: Callable[..., Any], store_item: Callable[..., Any]) -> Source:
    """The entry that sums, by these functions of a family; items are those of every part."""

    def sum_items(blob: Blob, thread: int) -> None:
        call, g = fields(blob).call, fields(blob).geometry
        scratch = call.scratch.address + thread * call.scratch.bytes
        sums = scratch + call.scratch.staging
        index = next_item(blob, thread)
        while index < call.items:
            part, inside = index // call.gradient.part_items, index % call.gradient.part_items
            first = part * call.gradient.part_tiles
            end = min(first + call.gradient.part_tiles, schedule.tile_count(g))
            sum_item(blob, inside, first, end, scratch)
            if call.gradient.parts > 1:
                memory.copy(
                    call.panels.address + index * call.gradient.item_sums,
                    sums,
                    call.gradient.item_sums,
                )
            else:
                store_item(blob, inside, sums)
            index = next_item(blob, thread)

    return entry(sum_items)


def adder(store_item: Callable[..., Any]) -> Source:
    """The entry that adds the sums of all parts; items are those of one part."""

    def add_parts(blob: Blob, thread: int) -> None:
        call = fields(blob).call
        index = next_item(blob, thread)
        while index < call.items:
            sums = call.panels.address + index * call.gradient.item_sums
            for part in range(1, call.gradient.parts):
                at = sums + part * call.gradient.part_items * call.gradient.item_sums
                add_sums(call.kernels, to=sums, at=at, size=call.gradient.item_sums)
            store_item(blob, index, sums)
            index = next_item(blob, thread)

    return entry(add_parts)
