"""Random changes of all fields of sound maps: what is followed to the end is what was meant.

The changes are drawn over fields and kinds of change, not from a list of mistakes that people make,
so that the linter meets those that it has no guess for. A wrong single fix is one that is followed
until nothing is found, and gives another map than the sound one.
"""

import random

import pytest

from implicit_conv import tma
from implicit_conv.tma.maps.driver import DATA_TYPES, ENUMS, PREFIX

from .test_mutations import SOUND, im2col, tiled

NUMBERS = [1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 48, 64, 96, 100, 128, 192, 256, 300, 512, 1000]
COUNTS = ("channelsPerPixel", "pixelsPerColumn")


def number(rng, value, size):
    """Another number: in another unit, near it, of another sign, or any."""
    unit = 16 // size
    near = [value + 1, value - 1, value + unit, value - unit, 2 * value, value // 2, -value]
    return rng.choice([value * size, value // size, *near, 0, rng.choice(NUMBERS)])


def exchanged(rng, values, size):
    if len(values) < 2:
        return values
    i, j = rng.sample(range(len(values)), 2)
    return [values[j] if n == i else values[i] if n == j else v for n, v in enumerate(values)]


def one_entry(rng, values, size):
    i = rng.randrange(len(values))
    return [*values[:i], number(rng, values[i], size), *values[i + 1 :]]


def all_entries(rng, values, size):
    return rng.choice(
        [[v * size for v in values], [v // size for v in values], [-v for v in values]]
    )


def reordered(rng, values, size):
    v = list(values)
    turned = [v[1:] + v[:1], v[-1:] + v[:-1], v[::-1]]
    return rng.choice([*turned, v[1:], v[:-1], [size, *v], [*v, 1]])


def mutation(rng, a, size):
    """Arguments with other values, of one field or of two that are exchanged."""
    unused = ("function", "l2Promotion")
    fields = [name for name, value in a.items() if name not in unused and value not in ((), None)]
    name = rng.choice(fields)
    if name in ENUMS:
        infix, names = ENUMS[name]
        return {name: f"{PREFIX}{infix}{rng.choice(list(names.values()))}"}
    if name == "tensorDataType":
        modelled = [element for element, (_, size, _) in DATA_TYPES.items() if size]
        return {name: f"{PREFIX}DATA_TYPE_{rng.choice(modelled)}"}
    like = [
        other
        for other in fields
        if other != name
        and (
            (name in COUNTS and other in COUNTS)
            or (
                isinstance(a[other], tuple)
                and isinstance(a[name], tuple)
                and len(a[other]) == len(a[name])
            )
        )
    ]
    if like and rng.random() < 0.15:
        other = rng.choice(like)
        return {name: a[other], other: a[name]}
    if isinstance(a[name], int):
        return {name: number(rng, a[name], size)}
    change = rng.choice([exchanged, exchanged, one_entry, one_entry, all_entries, reordered])
    return {name: tuple(change(rng, a[name], size))}


def outcome(given, change):
    """Whether the change is "undone", "told" by words, "silent" or "wrong"; None for no change."""
    damaged = {**given, **change}
    if damaged == given:
        return None
    fixed = damaged
    for _ in range(8):
        findings = tma.lint(**fixed)
        fix = next((finding.fix for finding in findings if finding.fix), None)
        if fix is None:
            break
        fixed = {**fixed, **fix}
    if fixed == given:
        return "undone"
    if fixed != damaged and not findings:
        return "wrong"
    return "told" if tma.lint(**damaged) else "silent"


@pytest.mark.parametrize(
    "count",
    [
        300,
        pytest.param(3000, marks=pytest.mark.slow),
        pytest.param(10000, marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("kind", ["tiled", "im2col", "table"])
def test_one_wrong_single_fix_in_a_hundred_at_most(kind, count):
    """Of the changes that are found at all, and that is more than half of them."""
    rng, counts = random.Random(45), dict.fromkeys(("undone", "told", "silent", "wrong"), 0)
    draw = {
        "tiled": lambda: tiled(rng),
        "im2col": lambda: im2col(rng),
        "table": lambda: (rng.choice(list(SOUND.values())), None),
    }[kind]
    while sum(counts.values()) < count:
        try:
            map, start = draw()
        except tma.TensorMapError:  # five large extents: a stride of 2^40 bytes
            continue
        given = dict(map.arguments)
        if start and rng.random() < 0.5:
            given["coords"] = start
        result = outcome(given, mutation(rng, map.arguments, map.itemsize))
        if result:
            counts[result] += 1
    found = count - counts["silent"]
    assert counts["wrong"] <= 0.01 * found, counts
    assert found > 0.5 * count and counts["undone"] > 0.15 * count, counts


UNITS = [  # a sound map, and what each change of a pair or a unit must not be taken for
    tma.TiledMap(
        shape=(1, 2, 1000, 32), strides=(128000, 64, 128), box=(1, 1, 64, 16), dtype="bfloat16"
    ),
    tma.Im2colMap(
        shape=(9, 15, 22, 128),
        dtype="float16",
        lower_corner=(-1, -2),
        upper_corner=(-1, -2),
        traversal_stride=(2, 1),
        pixels_per_column=96,
        channels_per_pixel=64,
        swizzle="128B",
    ),
]


@pytest.mark.parametrize("map", UNITS, ids=["tiled", "im2col"])
def test_every_exchange_and_every_unit_is_undone_or_named(map):
    """Two entries exchanged, or one size in another unit, are never taken for something else."""
    given, results = map.arguments, []
    for name, values in given.items():
        if not isinstance(values, tuple):
            continue
        size = map.itemsize
        for i in range(len(values)):
            scaled = values[i] // size if name == "globalStrides" else values[i] * size
            results.append(outcome(given, {name: (*values[:i], scaled, *values[i + 1 :])}))
            for j in range(i):
                turned = list(values)
                turned[i], turned[j] = values[j], values[i]
                results.append(outcome(given, {name: tuple(turned)}))
    assert "wrong" not in results
    assert sum(result in ("undone", "told") for result in results) >= 8


def test_pixels_and_channels_exchanged():
    given = UNITS[1].arguments
    change = {"pixelsPerColumn": 64, "channelsPerPixel": 96}
    (finding,) = tma.lint(**{**given, **change})
    assert "pixels of a load look exchanged, or channelsPerPixel: load 64" in finding.hint
    assert finding.fix is None
    (finding,) = tma.lint(**{**given, "channelsPerPixel": 128})
    assert finding.fix == {"channelsPerPixel": 64} and "looks like bytes" in finding.hint
