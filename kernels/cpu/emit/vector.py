"""Emit vector code: the few LLVM instructions that the CPU kernels are made of.

Numba vectorises plain loops as it sees fit (and not beyond 256 bits), so kernels that must run at
the FMA peak are emitted as explicit ``<lanes x T>`` operations.
"""

import math
from dataclasses import dataclass

from llvmlite import ir
from numba.core import cgutils

I64 = ir.IntType(64)
I32 = ir.IntType(32)
I8 = ir.IntType(8)
VOID = ir.VoidType()
BYTES = I8.as_pointer()

SCALAR = {4: ir.FloatType(), 8: ir.DoubleType()}
SUFFIX = {4: "f32", 8: "f64"}


class BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite has no name for."""

    def _to_string(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, BFloat)

    def __hash__(self):
        return hash(BFloat)


def i64(value):
    return ir.Constant(I64, value)


def vectors_name(lanes, itemsize, fma):
    """What the names of kernels say of an Emitter's vectors: caches tell kernels by their names."""
    return f"{lanes}x{itemsize}" + ("" if fma else "_no_fma")


@dataclass(frozen=True)
class Emitter:
    """Builds operations on vectors of `lanes` floats of `itemsize` bytes; `fma` where the CPU has
    it.
    """

    builder: ir.IRBuilder
    lanes: int
    itemsize: int
    fma: bool

    @property
    def scalar(self):
        return SCALAR[self.itemsize]

    @property
    def vector(self):
        return ir.VectorType(self.scalar, self.lanes)

    @property
    def registers(self):
        """How many vectors the CPU holds, at least."""
        return 32 if self.lanes * self.itemsize == 64 else 16

    @property
    def words(self):
        """The type of vectors of 32-bit integers."""
        return ir.VectorType(I32, self.lanes)

    def word(self, value):
        """A 32-bit integer in every lane."""
        return ir.Constant(self.words, [value] * self.lanes)

    def pointer(self, address, kind=None):
        """`address` (an integer or a byte pointer) as a pointer to `kind`, a vector by default."""
        kind = (kind or self.vector).as_pointer()
        if address.type == I64:
            return self.builder.inttoptr(address, kind)
        return self.builder.bitcast(address, kind)

    def at(self, base, offset):
        """Byte pointer `base` moved by `offset` bytes."""
        offset = i64(offset) if isinstance(offset, int) else offset
        return self.builder.gep(base, [offset], inbounds=True)

    def load(self, address, align=None):
        value = self.builder.load(self.pointer(address))
        value.align = align or self.itemsize
        return value

    def store(self, value, address, align=None):
        self.builder.store(value, self.pointer(address)).align = align or self.itemsize

    def below(self, count, first=0):
        """The mask of lanes that stand for elements first, first + 1, ... below `count` < 2^31."""
        indices = ir.Constant(self.words, list(range(first, first + self.lanes)))
        return self.builder.icmp_signed("<", indices, self.splat_word(count))

    def load_masked(self, address, mask):
        """The lanes in `mask`, zero elsewhere; only they are read."""
        blank = ir.Constant(self.vector, [0.0] * self.lanes)
        return self._masked("load", self.vector, self.pointer(address), mask, blank)

    def store_masked(self, value, address, mask):
        """Write the lanes in `mask` alone."""
        self._masked("store", VOID, value, self.pointer(address), mask)

    def _masked(self, name, result, *arguments):
        position = 1 if name == "load" else 2  # of the alignment
        align = ir.Constant(I32, self.itemsize)
        arguments = [*arguments[:position], align, *arguments[position:]]
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        full = f"llvm.masked.{name}.v{self.lanes}{SUFFIX[self.itemsize]}.p0"
        function = cgutils.get_or_insert_function(self.builder.module, kind, full)
        return self.builder.call(function, arguments)

    def store_first(self, values, addresses, count):
        """Write the first `count` lanes of each value, all of them where there are fewer."""
        whole = self.builder.icmp_signed(">=", count, i64(self.lanes))
        with self.builder.if_else(whole) as (full, partial):
            with full:
                for value, address in zip(values, addresses, strict=True):
                    self.store(value, address)
            with partial:
                mask = self.below(count)
                for value, address in zip(values, addresses, strict=True):
                    self.store_masked(value, address, mask)

    def splat_word(self, value):
        """An int64 below 2^31 as a 32-bit integer in every lane."""
        undefined = ir.Constant(self.words, ir.Undefined)
        first = self.builder.trunc(value, I32)
        first = self.builder.insert_element(undefined, first, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, undefined, self.word(0))

    def splat(self, scalar):
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, undefined, self.word(0))

    def constant(self, value):
        return ir.Constant(self.vector, [float(value)] * self.lanes)

    def repeat_lanes(self, value, step, times, first):
        """Lanes first, first + step, ... of `value`, each of them `times` in a row."""
        lanes = [lane // times * step + first for lane in range(self.lanes)]
        return self.builder.shuffle_vector(value, value, ir.Constant(self.words, lanes))

    def narrow(self, double):
        """A float64 as a scalar of the vector's element type."""
        if self.itemsize == 8:
            return double
        return self.builder.fptrunc(double, SCALAR[self.itemsize])

    def broadcast(self, address):
        """The one float at `address`, in every lane."""
        value = self.builder.load(self.pointer(address, SCALAR[self.itemsize]))
        value.align = self.itemsize
        return self.splat(value)

    def multiply_add(self, a, b, c):
        """a * b + c, rounded once where the CPU has an FMA, else twice; never emulated."""
        if not self.fma:
            return self.builder.fadd(self.builder.fmul(a, b), c)
        name = f"llvm.fma.v{self.lanes}{SUFFIX[self.itemsize]}"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [a, b, c])

    def dot_pairs(self, a, b, c):
        """c + a[1] * b[1] + a[0] * b[0] for pairs of bfloat16 in the lanes of `a` and `b`.

        AVX512_BF16's VDPBF16PS: each product is added with one rounding to nearest even; subnormal
        factors count as zeros, and subnormal sums become zeros.
        """
        pairs = ir.VectorType(BFloat(), 2 * self.lanes)
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.lanes}"
        kind = ir.FunctionType(self.vector, [self.vector, pairs, pairs])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        a, b = (self.builder.bitcast(value, pairs) for value in (a, b))
        return self.builder.call(function, [c, a, b])

    def round_pairs(self, low, high):
        """Both vectors of floats as bfloat16, one behind the other; subnormals become zeros."""
        pairs = ir.VectorType(BFloat(), 2 * self.lanes)
        name = f"llvm.x86.avx512bf16.cvtne2ps2bf16.{32 * self.lanes}"
        kind = ir.FunctionType(pairs, [self.vector, self.vector])
        function = cgutils.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.bitcast(self.builder.call(function, [high, low]), self.vector)

    def at_least(self, value, low):
        """The larger of the two; a NaN `value` stays a NaN."""
        return self.builder.select(self.builder.fcmp_ordered("<", value, low), low, value)

    def at_most(self, value, high):
        """The smaller of the two; a NaN `value` stays a NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", value, high), high, value)

    def clamp(self, value, low, high):
        """`value` within [low, high]; a NaN stays a NaN."""
        return self.at_most(self.at_least(value, low), high)

    def bounded(self, low, high):
        """Whether the bounds of a clamp, scalars, are any."""
        return self.builder.or_(
            self.builder.fcmp_ordered(">", low, ir.Constant(low.type, -math.inf)),
            self.builder.fcmp_ordered("<", high, ir.Constant(high.type, math.inf)),
        )

    def prefetch(self, address, locality):
        """Ask for the cache line at `address`: locality 3 into L1, 2 into L2."""
        kind = ir.FunctionType(VOID, [BYTES, I32, I32, I32])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        flags = [ir.Constant(I32, value) for value in (0, locality, 1)]
        self.builder.call(function, [address, *flags])

    def opaque(self, value):
        """`value`, its origin hidden from the optimiser (which would chain address additions)."""
        kind = ir.FunctionType(value.type, [value.type])
        return self.builder.call(ir.InlineAsm(kind, "", "=r,0"), [value])

    def loop(self, count, step, carried, body):
        """for index in range(0, count, step): carried = body(index, carried); returns the last
        ones.
        """
        builder = self.builder
        before = builder.block
        inside, after = (builder.append_basic_block(name) for name in ("loop", "after"))
        builder.cbranch(builder.icmp_signed("<", i64(0), count), inside, after)
        builder.position_at_end(inside)
        phis = [builder.phi(value.type) for value in (i64(0), *carried)]
        results = body(phis[0], phis[1:])
        following = builder.add(phis[0], i64(step))
        latch = builder.block
        for phi, first, again in zip(phis, (i64(0), *carried), (following, *results), strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(again, latch)
        builder.cbranch(builder.icmp_signed("<", following, count), inside, after)
        builder.position_at_end(after)
        merged = []
        for first, last in zip(carried, results, strict=True):
            phi = builder.phi(first.type)
            phi.add_incoming(first, before)
            phi.add_incoming(last, latch)
            merged.append(phi)
        return merged
