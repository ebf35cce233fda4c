"""The launchable operators of weight gradients: one sums, one adds the sums of parts."""

import functools

from implicit_conv.kernels import schedule
from implicit_conv.kernels.cpu.emit import memory
from implicit_conv.kernels.cpu.runtime.entry import ENTRY, fields, next_item
from implicit_conv.kernels.cpu.runtime.parts import BOUND, compile_function
from implicit_conv.kernels.cpu.wgrad.sums import add_sums

sum_item = store_item = BOUND  # bound by compile_operators


def sum_items(blob, thread):
    """Template of the operator that sums: items are those of every part."""
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
                call.panels.address + index * call.gradient.item_sums, sums, call.gradient.item_sums
            )
        else:
            store_item(blob, inside, sums)
        index = next_item(blob, thread)


def add_parts(blob, thread):
    """Template of the operator that adds the sums of all parts; items are those of one part."""
    call = fields(blob).call
    index = next_item(blob, thread)
    while index < call.gradient.part_items:
        sums = call.panels.address + index * call.gradient.item_sums
        for part in range(1, call.gradient.parts):
            at = sums + part * call.gradient.part_items * call.gradient.item_sums
            add_sums(call.kernels, to=sums, at=at, size=call.gradient.item_sums)
        store_item(blob, index, sums)
        index = next_item(blob, thread)


@functools.cache
def compile_operators(name, sum_item, store_item):
    """The compiled operators (that sums, that adds parts) of one family, whose work items are
    summed by `sum_item` and stored by `store_item`.
    """
    return (
        compile_function(ENTRY, sum_items, name, sum_item=sum_item, store_item=store_item),
        compile_function(ENTRY, add_parts, f"{name}_add_parts", store_item=store_item),
    )
