"""AMX: the instructions as emitted, emulated anywhere, and executed where the CPU has them."""

import ctypes
import functools
import re
from contextlib import contextmanager
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest
from compiled import uncached
from hypothesis import given
from hypothesis import strategies as st
from llvmlite import ir
from sampling import examples, resampled

from implicit_conv.cpu.candidates import tiling
from implicit_conv.cpu.machine import arch as arches
from implicit_conv.cpu.machine.arch import cpu_arch
from implicit_conv.cpu.machine.costs import EPYC
from implicit_conv.cpu.methods import gemm_tilings
from implicit_conv.cpu.plan import facts
from implicit_conv.kernels.cpu.ceilings.compiled import emit_tiles, run_fmas
from implicit_conv.kernels.cpu.ceilings.operator import STEPS, TILE_FLOPS, TILE_SUMS
from implicit_conv.kernels.cpu.emit.vector import I8, I64, VOID, i64
from implicit_conv.kernels.cpu.gemm.compiled import amx
from implicit_conv.kernels.cpu.gemm.compiled.microkernel import multiply_tile
from implicit_conv.kernels.cpu.gemm.layout import RegisterTile
from implicit_conv.testing import Case, error_units, plan_of, to_nchw

UNITS = 16
EMULATED = ".gemm.compiled.amx:"  # makers of code with the instructions
# As with AMX, on a CPU whose dot products of pairs are fast too.
TILED = replace(cpu_arch(1), vector_bits=512, bfloat16="amx", costs=EPYC)


class TileUnit:
    """Eight tile registers and the instructions on them, by their names in LLVM."""

    def __init__(self):
        self.rows, self.row_bytes = [0] * 8, [0] * 8
        self.tiles = np.zeros((8, 16, 64), np.uint8)
        self.products = 0
        self.heights = set()

    def ldtilecfg(self, address):
        config = ctypes.string_at(address, 64)
        assert config[0] == 1
        assert not any(config[1:16])
        self.row_bytes = np.frombuffer(config[16:32], np.uint16).tolist()
        self.rows = list(config[48:56])
        assert max(self.rows) <= 16
        self.heights.add(self.rows[0])
        assert max(self.row_bytes) <= 64
        self.tiles[:] = 0

    def tileloadd64(self, tile, address, stride):
        self.tiles[tile] = 0
        for row in range(self.rows[tile]):
            content = ctypes.string_at(address + row * stride, self.row_bytes[tile])
            self.tiles[tile, row, : len(content)] = np.frombuffer(content, np.uint8)

    def tilestored64(self, tile, address, stride):
        for row in range(self.rows[tile]):
            content = self.tiles[tile, row, : self.row_bytes[tile]].tobytes()
            ctypes.memmove(address + row * stride, content, len(content))

    def tdpbf16ps(self, sums, a, b):
        assert self.rows[sums] == self.rows[a]
        assert self.rows[b] == self.row_bytes[a] // 4
        assert self.row_bytes[sums] == self.row_bytes[b]
        left, right = (self.tiles[tile].view(np.uint16).astype(np.uint32) << 16 for tile in (a, b))
        left = left.view(np.float32)
        right = right.view(np.float32).reshape(16, 16, 2).transpose(0, 2, 1).reshape(32, 16)
        total = self.tiles[sums].view(np.float32)
        total += (left[:, :, None] * right).sum(1)  # the same order for every row, unlike matmul
        self.products += 1

    def tilerelease(self):
        self.rows = [0] * 8


@contextmanager
def emulated():
    """The engine with a TileUnit in place of the instructions. Microkernels, which hold addresses
    of this process, are not cached.
    """
    unit, callbacks, errors = TileUnit(), {}, []

    def guarded(name, *values):
        try:
            getattr(unit, name)(*values)
        except Exception as error:  # a callback's caller would not see it
            errors.append(error)

    class Emulated(amx.Tiles):
        def _call(self, name, *arguments):
            words = [self._word(value) for value in arguments]
            if name not in callbacks:
                kind = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(words))
                callbacks[name] = kind(functools.partial(guarded, name))
            address = ctypes.cast(callbacks[name], ctypes.c_void_p).value
            kind = ir.FunctionType(VOID, [I64] * len(words))
            function = self._builder.inttoptr(i64(address), kind.as_pointer())
            self._builder.call(function, words)

        def _word(self, value):
            if value.type == I8:
                return self._builder.zext(value, I64)
            return value if value.type == I64 else self._builder.ptrtoint(value, I64)

    with pytest.MonkeyPatch.context() as patch, uncached(EMULATED):
        patch.setattr(amx, "Tiles", Emulated)
        yield unit
    assert errors == []


def compute(case, x, w, *, out_dtype=None, pixels=None, block=None):
    """The convolution by tiles; axes N, K, P, Q."""
    arrays = case.arrange(x, w)
    with pytest.MonkeyPatch.context() as patch:
        if pixels:
            patch.setattr(tiling, "TILE_PIXELS", (pixels,))
        if block:
            patch.setattr(gemm_tilings, "BLOCK_ELEMENTS", block)
        plan = plan_of(case, TILED, precision="strict", out_dtype=out_dtype)
    assert plan.engine.best.method.multiplier == "amx"
    return to_nchw(plan(*arrays), case.layout)


@st.composite
def cases(draw):
    kernel = draw(st.sampled_from([(1, 1), (3, 3), (1, 4)]))
    low = st.integers(0, 2)
    return Case(
        N=draw(st.integers(1, 3)),
        C=draw(st.sampled_from([32, 64, 96])),
        K=draw(st.sampled_from([1, 16, 17, 32, 40])),
        groups=draw(st.sampled_from([1, 1, 2])),
        size=(draw(st.integers(3, 6)), draw(st.integers(4, 40))),
        kernel=kernel,
        stride=draw(st.sampled_from([(1, 1), (2, 2)])),
        padding=((draw(low), draw(low)), (draw(low), draw(low))),
        layout=draw(st.sampled_from(["NCHW", "NHWC"])),
        weight_layout=draw(st.sampled_from(["KCRS", "KRSC"])),
        dtype="bfloat16",
    )


@resampled
def test_emulated_tiles_are_exact_on_integers():
    """Blocks of any height, one and two vectors of filters, several blocks of channels."""

    @examples(12, 80, 30)
    @given(
        case=cases(),
        seed=st.integers(0, 2**31),
        pixels=st.sampled_from([1, 16, 32, 33, 200]),
        block=st.sampled_from([20, 5120]),
    )
    def check(case, seed, pixels, block):
        compare(case, seed, pixels, block)

    def compare(case, seed, pixels, block):
        x, w = case.inputs(seed, integers=True)
        expected = case.reference(x, w)
        options = {"pixels": pixels, "block": block if case.kernel == (1, 1) else None}
        sums = compute(case, x, w, out_dtype="float32", **options)
        np.testing.assert_array_equal(sums, expected)
        if cpu_arch().rounds_bfloat16:  # 16-bit results need the instruction
            y = compute(case, x, w, **options)
            np.testing.assert_array_equal(y.astype(float), case.rounded(expected))

    with emulated() as unit:
        for columns in range(1, 17):  # each height of a tile of pixels
            row = Case(C=32, K=17, size=(1, columns), kernel=(1, 1), dtype="bfloat16")
            compare(row, columns, 200, 5120)
        check()
    assert unit.products > 0
    assert unit.heights == set(range(1, 17))


def test_tables_do_not_outlive_their_code():
    """Other sizes share the table of an operator, whose code has to be that of the same process."""
    for columns in (5, 20):  # which need other register tiles
        case = Case(C=32, K=17, size=(3, columns), padding=((1, 1), (1, 1)), dtype="bfloat16")
        x, w = case.inputs(0, integers=True)
        with emulated() as unit:
            np.testing.assert_array_equal(
                compute(case, x, w, out_dtype="float32"), case.reference(x, w)
            )
        assert unit.products > 0


def test_emulated_sums_do_not_depend_on_tiles_or_batch():
    case = Case(N=3, C=64, K=40, size=(7, 19), padding=((1, 1), (1, 1)), dtype="bfloat16")
    x, w = case.inputs(0)
    with emulated():
        whole = compute(case, x, w, out_dtype="float32")
        for pixels in (1, 17, 5000):
            tiled = compute(case, x, w, out_dtype="float32", pixels=pixels)
            np.testing.assert_array_equal(tiled, whole)
        single = compute(replace(case, N=1), x[1:2], w, out_dtype="float32")
        np.testing.assert_array_equal(single, whole[1:2])
    scale = case.reference(x, w, True)
    assert error_units(whole, case.reference(x, w), scale, "float32") <= UNITS


@pytest.mark.skipif(cpu_arch().bfloat16 != "amx", reason="no AMX here, or not granted")
@examples(60, 200)
@given(case=cases(), seed=st.integers(0, 2**31))
def test_tiles_are_right_on_this_cpu(case, seed):
    x, w = case.inputs(seed, integers=True)
    expected = case.reference(x, w)
    np.testing.assert_array_equal(compute(case, x, w, out_dtype="float32"), expected)
    x, w = case.inputs(seed)
    expected, scale = case.reference(x, w), case.reference(x, w, True)
    assert error_units(compute(case, x, w), expected, scale, "bfloat16") <= UNITS


def largest_tile(builder, at):
    """Emit the largest register tile."""
    tile = RegisterTile(
        1, arches.AMX_PIXELS, 2, 16, 4, True, dots=("bfloat16", "bfloat16"), y="bfloat16"
    )
    amx.emit(tile, amx.Tiles, builder, at)


def assembly(part=multiply_tile.part, emit=largest_tile):
    """Assembly of a part on tiles."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = ir.Module("amx")
    module.triple = "x86_64-linux-gnu"
    kinds = [ir.IntType(64)] * len(part.integers) + [ir.DoubleType()] * len(part.floats)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), "microkernel")
    builder = ir.IRBuilder(function.append_basic_block())
    at = dict(zip(part.parameters, function.args, strict=True))
    emit(builder, at)
    builder.ret_void()
    features = "+avx512f,+avx512bf16,+amx-tile,+amx-bf16"
    target = llvm.Target.from_triple(module.triple)
    machine = target.create_target_machine(features=features, opt=3)
    parsed = llvm.parse_assembly(str(module))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    passes.getModulePassManager().run(parsed, passes)
    return machine.emit_assembly(parsed)


def test_the_inner_loop_is_four_loads_and_four_products():
    text = assembly()
    blocks = re.split(r"^\.?\w*LBB\w*:.*$", text, flags=re.MULTILINE)
    loop = max(blocks, key=lambda block: block.count("tdpbf16ps"))
    assert loop.count("tileloadd") == loop.count("tdpbf16ps") == 4
    products = re.findall(r"tdpbf16ps\s+%tmm(\d), %tmm(\d), %tmm(\d)", loop)  # B, A, sums
    assert products == [("6", "4", "0"), ("7", "4", "1"), ("6", "5", "2"), ("7", "5", "3")]
    assert text.count("ldtilecfg") == text.count("tilerelease") == 1


def test_the_ceiling_is_of_products_alone():
    text = assembly(run_fmas.part, emit_tiles)
    blocks = re.split(r"^\.?\w*LBB\w*:.*$", text, flags=re.MULTILINE)
    loop = max(blocks, key=lambda block: block.count("tdpbf16ps"))
    assert loop.count("tdpbf16ps") == STEPS * TILE_SUMS and not loop.count("tileloadd")
    sums = re.findall(r"tdpbf16ps\s+%tmm\d, %tmm\d, %tmm(\d)", loop)
    assert sums == [*"0123"] * STEPS  # each waits for the fourth before it
    assert TILE_FLOPS == 2 * amx.ROWS * amx.ROWS * 2 * amx.ROWS
    assert text.count("ldtilecfg") == text.count("tilerelease") == 1


def test_the_peak_is_that_of_what_multiplies(monkeypatch):
    monkeypatch.setattr(facts, "tile_rate", lambda: 5e12)
    peaks = {
        channels: plan_of(Case(C=channels, K=32, size=(9, 9), dtype="bfloat16"), TILED).facts()
        for channels in (64, 48)
    }
    assert peaks[64]["peak"] == 5e12 > peaks[48]["peak"]


@pytest.mark.parametrize(("granted", "chosen"), [(True, "amx"), (False, "pairs")])
def test_tiles_are_used_only_where_the_system_grants_them(monkeypatch, granted, chosen):
    monkeypatch.setattr(arches, "amx_granted", lambda: granted)
    features = frozenset(arches.FEATURES)
    monkeypatch.setattr(arches, "cpu_features", lambda: features)
    assert cpu_arch.__wrapped__(1).bfloat16 == chosen


@pytest.mark.parametrize(
    ("channels", "kernel", "tiled"),
    [(64, (3, 3), True), (48, (3, 3), False), (33, (3, 3), False), (2 * 1168, (5, 5), False)],
)
def test_tiles_take_whole_blocks_of_32_channels(channels, kernel, tiled):
    """Other blocks use dot products: blocks of 195 pairs, for example, of 1168 with 5x5 taps."""
    case = Case(C=channels, K=8, size=(9, 9), kernel=kernel, dtype="bfloat16")
    plan = plan_of(case, TILED, precision="strict")
    method = plan.engine.best.method
    assert (method.channels, method.multiplier) == (2, "amx" * tiled)
    assert ("tiles of pairs" in plan.explain()) == tiled
