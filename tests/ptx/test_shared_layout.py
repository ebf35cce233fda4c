"""Shared variables lie where hardware may put them: no tile gets an alignment by luck."""

import itertools
import re

import numpy as np
import pytest
from ptx_texts import kernel

from implicit_conv import ptx

SIZES = {"a": (1, 3), "b": (4, 4), "c": (8, 40), "d": (128, 640), "e": (1024, 1024)}
DECLARED = " ".join(
    f".shared .align {align} .b8 {name}[{size}];" for name, (align, size) in SIZES.items()
)
EXTERNAL = ".extern .shared .align 16 .b8 rest[];"


def addresses(seed, **options):
    """Where a run has put the variables, by name."""
    names = [*SIZES, "rest"]
    stores = " ".join(
        f"mov.u32 %r1, {name}; st.global.u32 [%d1+{4 * n}], %r1;" for n, name in enumerate(names)
    )
    found = np.zeros(len(names), np.uint32)
    text = kernel(f"{DECLARED} {stores}", shared=EXTERNAL)
    ptx.run(text, 1, 1, [found], shared_bytes=64, seed=seed, **options)
    return dict(zip(names, found.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_variables_lie_at_odd_multiples_of_their_alignment(seed):
    found = addresses(seed)
    assert found == addresses(seed)
    for name, (align, _) in {**SIZES, "rest": (16, 64)}.items():
        assert found[name] % (2 * align) == align, name
    ends = {found[name] + size: name for name, (_, size) in SIZES.items()}
    order = sorted(SIZES, key=found.get)
    assert 0x400 <= found[order[0]] and max(ends) <= found["rest"]
    for name, other in itertools.pairwise(order):
        assert found[name] + SIZES[name][1] <= found[other]


def test_seeds_draw_the_order():
    orders = {tuple(sorted(SIZES, key=addresses(seed).get)) for seed in range(20)}
    assert len(orders) > 10


def test_dynamic_memory_has_the_alignment_that_the_launch_says():
    assert all(addresses(seed, shared_alignment=1024)["rest"] % 2048 == 1024 for seed in range(9))
    assert addresses(0, shared_alignment=4)["rest"] % 32 == 16  # the declared one is more
    for wrong in (-16, 48, 1 << 17):
        with pytest.raises(ptx.PtxError, match=f"shared_alignment = {wrong}: no power of two"):
            addresses(0, shared_alignment=wrong)


@pytest.mark.parametrize("access", ["ld.shared.u8 %r2, [%r1+{}];", "st.shared.u8 [%r1+{}], 0;"])
@pytest.mark.parametrize("name", ["b", "d"])
def test_bytes_between_variables_belong_to_none(name, access):
    """One seed at least draws an order where another variable does not follow at once."""
    size, said = SIZES[name][1], set()
    for seed in range(9):
        text = kernel(f"{DECLARED} mov.u32 %r1, {name}; {access.format(size)}", shared=EXTERNAL)
        try:
            ptx.run(text, 1, 1, [None], shared_bytes=64, seed=seed)
        except ptx.PtxError as error:
            said.add(re.sub(r"(?s).*\n *|0x\w+", "", str(error)))
    what = access[:9]
    assert f"{what} at shared  ({name} + {size}): bytes that belong to no variable" in said


@pytest.mark.parametrize("space", [".local", ".global"])
def test_variables_of_other_spaces_have_no_alignment_by_luck(space):
    declared = f"{space} .align 4 .b8 other[64];"
    before, inside = (declared, "") if space == ".global" else ("", declared)
    load = f"{inside} mov.u64 %d2, other; ld{space}.v4.u32 {{%r1, %r2, %r3, %r4}}, [%d2];"
    with pytest.raises(ptx.PtxError, match="not aligned to 16"):
        ptx.run(kernel(load, shared=before), 1, 1, [None])
    aligned = kernel(
        load.replace("align 4", "align 16"), shared=before.replace("align 4", "align 16")
    )
    try:
        ptx.run(aligned, 1, 1, [None])
    except ptx.PtxError as error:
        assert "never written" in str(error) and space == ".local"
