"""Where lanes that part meet again: the nearest block that every way to the end goes through."""

import random

from hang import no_hang
from ptx_texts import kernel
from sampling import count, sampled

from implicit_conv import ptx
from implicit_conv.ptx.syntax import Block
from implicit_conv.ptx.text.joins import find_joins


def nearest_post_dominators(targets):
    """By sets: b comes after a if the end is out of a's reach without b."""
    end = len(targets)

    def reaches(start, without):
        met, left = {start}, [start]
        while left:
            for other in targets[left.pop()] or [end]:
                if other not in met and other != without:
                    met.add(other)
                    left += [other] if other != end else []
        return end in met

    def after(a):
        return [b for b in range(end) if b != a and not reaches(a, b)]

    found = []
    for a in range(end):
        later = after(a) if reaches(a, None) else []
        found += [b for b in later if set(later) == {b, *after(b)}] or [None]
    return found


@sampled
def test_joins_of_random_graphs():
    rng = random.Random(0)
    for _ in range(count(300, 20_000)):
        n = rng.randint(1, 10)
        targets = [[rng.randrange(n) for _ in range(rng.choice((0, 1, 2, 2)))] for _ in range(n)]
        blocks = [Block(i, targets=t) for i, t in enumerate(targets)]
        find_joins(blocks)
        assert [block.join for block in blocks] == nearest_post_dominators(targets), targets


def test_many_blocks():
    """Their joins are found in about linear time; by sets of blocks it took minutes."""
    text = kernel("mov.u32 %r1, 0; L: " + "add.u32 %r1, %r1, 1; @%p1 bra L;" * 20_000)
    with no_hang():
        assert len(ptx.parse(text).blocks) > 20_000
