"""Address arithmetic for all sizes: the kernels' functions run on symbols, and z3 proves the rest.

Device functions are plain Python, so each is called with symbols in place of numbers. Divisions by
multiplication are divisions here; test_reciprocal.py has those. Integers have no width: indices
stay below 2**31 by the planner's rules, and addresses are sums in 64 bits.
"""

import functools
import importlib
import importlib.util
import types

import pytest

from implicit_conv.gpu.plan.families import FAMILIES
from implicit_conv.kernels import walk
from implicit_conv.kernels.geometry import CIRCULAR, REFLECT, REPLICATE, SYMMETRIC

if importlib.util.find_spec("numba_cuda") is None:
    pytest.skip("needs pip install '.[cu13]' in a checkout", allow_module_level=True)
z3 = pytest.importorskip("z3", reason="needs pip install z3-solver")
producer = importlib.import_module("implicit_conv.kernels.gpu.producer")
raster = importlib.import_module("implicit_conv.kernels.gpu.raster")

SECONDS = 60
DEFINITIONS = []  # of the quotients that functions have asked for


@pytest.fixture(autouse=True)
def no_definitions():
    DEFINITIONS.clear()


def least(a, b):
    return z3.If(a < b, a, b)


def most(a, b):
    return z3.If(a > b, a, b)


def floor(n, divisor):
    """`integer.divide` and `integer.quotient`: defined by the rest, for what is not negative."""
    quotient = z3.FreshInt("quotient")
    rest = n - quotient * divisor
    DEFINITIONS.append(z3.Implies(z3.And(n >= 0, divisor >= 1), z3.And(0 <= rest, rest < divisor)))
    return quotient


def symbolic(function):
    """A device function as Python runs it on symbols, with all that it calls."""
    if not hasattr(function, "py_func"):
        return function
    inner = function.py_func
    names = {"divide": floor, "quotient": floor, "min": least, "max": most}
    cells = tuple(types.CellType(symbolic(cell.cell_contents)) for cell in inner.__closure__ or ())
    return types.FunctionType(
        inner.__code__, {**inner.__globals__, **names}, None, inner.__defaults__, cells
    )


def prove(claim, *given):
    """Fail with a counterexample unless the claim follows from what is given, and that can be."""
    solver = z3.Solver()
    solver.set("timeout", 1000 * SECONDS)
    solver.add(*DEFINITIONS, *given)
    assert solver.check() == z3.sat
    solver.add(z3.Not(claim))
    result = solver.check()
    assert result == z3.unsat, solver.model() if result == z3.sat else result


def sizes(names):
    """Symbols at least 1."""
    symbols = z3.Ints(names)
    return symbols, [symbol >= 1 for symbol in symbols]


def variant(name, **fields):
    found = (v for v in FAMILIES[name].variants)
    return next(v for v in found if all(getattr(v, k) == value for k, value in fields.items()))


def parameters(call, geometry):
    return types.SimpleNamespace(
        call=types.SimpleNamespace(**call), geometry=types.SimpleNamespace(**geometry)
    )


def test_tiles_are_counted_once():
    (groups, tiles_m, tiles_n, index), given = sizes("groups tiles_m tiles_n index")
    index -= 1  # from 0
    call = types.SimpleNamespace(
        tiles_m=tiles_m, tiles_n=tiles_n, by_group=tiles_m * tiles_n, by_panel=tiles_n
    )
    group, m, n = symbolic(raster.tile_at)(call, index)
    given.append(index < groups * (tiles_m * tiles_n))
    prove(index == group * (tiles_m * tiles_n) + m * tiles_n + n, *given)
    prove(z3.And(0 <= n, n < tiles_n, 0 <= m, m < tiles_m), *given)
    prove(z3.And(0 <= group, group < groups), *given)


@pytest.mark.parametrize("name", ["tma-wgmma", "volume-tma-wgmma"])
def test_rows_are_pixels(name):
    """Each kept row of a tile is one pixel, in the order (n, z, p, q)."""
    v = variant(name)
    (N, Z, P, Q, tile, row), given = sizes("N Z P Q tile row")
    planes = Z if v.volume else 1
    geometry = {"N": N, "P": P, "Q": Q, "Z": Z}
    call = {"by_image": planes * P * Q, "by_row": Q}
    n, p, q, kept = symbolic(raster.make_pixel(v))(parameters(call, geometry), tile, row)
    m = tile * v.tile_m + row
    prove(m == n * (planes * P * Q) + p * Q + q, *given)
    prove(z3.And(0 <= q, q < Q, 0 <= p, p < planes * P), *given)
    prove(kept == (m < N * (planes * P * Q)), *given)


def test_slots_are_pixels():
    """Rows of a tile of im2col::w are (n, slot) of one output row."""
    v = variant("tma-w-wgmma")
    (N, P, Q, slots, row_tiles, tile, row), given = sizes("N P Q slots row_tiles tile row")
    geometry = {"N": N, "Q": Q, "slots": slots}
    call = {"by_image": slots, "by_row": row_tiles, "row_tiles": row_tiles}
    n, p, q, kept = symbolic(raster.make_pixel(v))(parameters(call, geometry), tile, row)
    m = (tile - p * row_tiles) * v.tile_m + row
    given += [row < v.tile_m, tile < P * row_tiles, Q <= slots]
    prove(z3.And(0 <= p, p < P, m == n * slots + q, 0 <= q, q < slots), *given)
    prove(kept == z3.And(n < N, q < Q), *given)


def test_each_slot_has_one_row():
    """From a pixel to its tile and row, and back."""
    v = variant("tma-w-wgmma")
    (N, P, Q, slots, row_tiles), given = sizes("N P Q slots row_tiles")
    n, p, q = z3.Ints("n p q")
    given += [0 <= n, n < N, 0 <= p, p < P, 0 <= q, q < slots]
    given.append(N * slots <= row_tiles * v.tile_m)
    m = n * slots + q
    tile, row = p * row_tiles + m / v.tile_m, m % v.tile_m
    geometry = {"N": N, "Q": Q, "slots": slots}
    call = {"by_image": slots, "by_row": row_tiles, "row_tiles": row_tiles}
    found = symbolic(raster.make_pixel(v))(parameters(call, geometry), tile, row)
    given.append(m < N * slots)  # as n * slots + q is; z3 need not multiply
    prove(found[1] == p, *given)
    given.append(found[1] == p)
    prove(z3.And(found[0] == n, found[2] == q), *given)


def test_filter_rows_inside_the_image():
    """A tile of im2col::w loads the filter rows that are inside, and no others."""
    v = variant("tma-w-wgmma")
    (H, R, stride, dilation, p, r), given = sizes("H R stride dilation p r")
    pad = z3.Int("pad")
    geometry = {"H": H, "R": R, "stride_h": stride, "dilation_h": dilation, "pad_h": pad}
    params = parameters({"by_dilation": dilation}, geometry)
    first, end = symbolic(raster.make_load_rows(v))(params, p)
    top = p * stride - pad
    given.append(r < R)
    at = z3.Int("at")  # r * dilation, which z3 need not multiply
    given.append(at == r * dilation)
    prove(z3.And(first <= r, r < end) == z3.And(0 <= top + at, top + at < H), *given)


@pytest.mark.parametrize("mode", [REFLECT, SYMMETRIC, REPLICATE, CIRCULAR])
def test_padding_repeats_pixels(mode, monkeypatch):
    """Up to a whole axis outside of an image, as numpy.pad; a row that is not kept stays so."""
    (size,), given = sizes("size")
    p = z3.Int("p")
    number = functools.partial(z3.If, b=1, c=0)
    monkeypatch.setattr(z3.BoolRef, "__sub__", lambda a, b: number(a) - number(b), raising=False)
    code = symbolic(producer.make_place_in(mode))
    turned = {
        name: cell.cell_contents
        for name, cell in zip(code.__code__.co_freevars, code.__closure__, strict=True)
    }["turned"]
    made = turned(p, size)
    period = {REFLECT: 2 * size - 2, SYMMETRIC: 2 * size, CIRCULAR: size}.get(mode)
    widest = size - 1 if mode == REFLECT else size
    given += [-widest <= p, p < size + widest]
    inside = z3.And(0 <= made, made < size)
    if mode == REPLICATE:
        expected = made == z3.If(p < 0, 0, z3.If(p >= size, size - 1, p))
    elif mode == CIRCULAR:
        expected = z3.Or(made == p, made == p + period, made == p - period)
    else:
        edge = 1 if mode == SYMMETRIC else 0
        expected = z3.Or(made == p, made == -edge - p, made == period - edge - p)
    prove(z3.And(inside, expected, z3.Implies(z3.And(0 <= p, p < size), made == p)), *given)


@pytest.mark.parametrize("pitch", [32, 64, 128])
def test_steps_of_swizzled_rows_are_xored(pitch):
    """Consumers swizzle an address once; steps of 16 and 32 bytes in a row are xored to it."""
    mask = walk.swizzle_mask(pitch)
    base, row, chunk, step = z3.BitVecs("base row chunk step", 32)
    start = base + row * pitch
    given = [base % pitch == 0, z3.ULT(base, 1 << 18), z3.ULT(row, 1 << 12)]
    given += [z3.ULT(chunk, pitch // 16), z3.ULT(step, pitch // 16)]
    swizzled = walk.swizzle(start + 16 * chunk, mask)
    prove(swizzled ^ (16 * step) == walk.swizzle(start + 16 * (chunk ^ step), mask), *given)
    # A swizzle moves chunks within their row's atom of 128 bytes, and it is undone by itself.
    prove(z3.LShR(swizzled, 7) == z3.LShR(start + 16 * chunk, 7), *given)
    prove(walk.swizzle(swizzled, mask) == start + 16 * chunk, *given)


@pytest.mark.parametrize("pitch", [32, 64, 128])
def test_eight_rows_have_one_swizzle(pitch):
    """Steps of 8 rows between tiles are added to a swizzled address."""
    mask = walk.swizzle_mask(pitch)
    address, steps = z3.BitVecs("address steps", 32)
    given = [z3.ULT(address, 1 << 18), z3.ULT(steps, 1 << 8), address % 16 == 0]
    moved = walk.swizzle(address + 8 * pitch * steps, mask)
    prove(moved == walk.swizzle(address, mask) + 8 * pitch * steps, *given)
