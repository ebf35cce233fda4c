"""Emit vector code: the few LLVM instructions that the CPU kernels consist of.

LLVM decides how Numba's plain loops are vectorised, and stops at 256 bits. Kernels that must run at
the FMA peak are therefore emitted as explicit ``<lanes x T>`` operations.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from implicit_conv.kernels.cpu.emit import internals, masks
from implicit_conv.kernels.cpu.emit.internals import ir
from implicit_conv.process.preparation import give_way

I64 = ir.IntType(64)
I32 = ir.IntType(32)
I8 = ir.IntType(8)
VOID = ir.VoidType()
BYTES = I8.as_pointer()

SCALAR = {4: ir.FloatType(), 8: ir.DoubleType()}  # by bytes
SUFFIX = {4: "f32", 8: "f64"}  # in the names of LLVM's intrinsics, by bytes
ARM = ("aarch64", "arm64")  # how LLVM's triples for 64-bit Arm begin
PIXELS_PER_BASE = 3  # pixels that one base register addresses, with the scales 1 and 2 of x86

Value = ir.Value
Builder = ir.IRBuilder
Values = Sequence[ir.Value]
Intrinsic = tuple[Any, Callable[..., Any]]  # a signature, and what emits code


def i64(value: int) -> ir.Value:
    """An int64 constant."""
    return ir.Constant(I64, value)


@dataclass(frozen=True)
class Emitter:
    """Builds operations on vectors of `lanes` floats of `itemsize` bytes; `fma` tells whether the
    CPU has fused multiply-adds. `Integers` is its counterpart for integers.
    """

    builder: ir.IRBuilder
    lanes: int
    itemsize: int
    fma: bool

    @property
    def scalar(self) -> ir.Type:
        """The LLVM type of an element."""
        return SCALAR[self.itemsize]

    @property
    def suffix(self) -> str:
        """The name of a vector's type in the names of LLVM's intrinsics."""
        return f"v{self.lanes}{SUFFIX[self.itemsize]}"

    @property
    def vector(self) -> ir.Type:
        """The LLVM type of a vector."""
        return ir.VectorType(self.scalar, self.lanes)

    @property
    def arm(self) -> bool:
        """Whether the code is for 64-bit Arm."""
        return str(self.builder.module.triple).startswith(ARM)

    @property
    def registers(self) -> int:
        """Vector registers of the CPU, at least."""
        return 32 if self.arm or self.lanes * self.itemsize == 64 else 16

    @property
    def by_element(self) -> bool:
        """Whether an FMA multiplies by an element of a register, as on NEON. A load that broadcasts
        would take the place of an FMA there, so it is better to load several elements at once.
        """
        return self.arm

    @property
    def words(self) -> ir.Type:
        """The type of vectors of 32-bit integers."""
        return ir.VectorType(I32, self.lanes)

    def word(self, value: int) -> ir.Value:
        """A 32-bit integer in every lane."""
        return ir.Constant(self.words, [value] * self.lanes)

    def pointer(self, address: ir.Value, kind: ir.Type | None = None) -> ir.Value:
        """`address` (an integer or a byte pointer) as a pointer to `kind`, a vector by default."""
        give_way()
        kind = (kind or self.vector).as_pointer()
        if address.type == I64:
            return self.builder.inttoptr(address, kind)
        return self.builder.bitcast(address, kind)

    def at(self, base: ir.Value, offset: ir.Value | int) -> ir.Value:
        """Byte pointer `base` moved by `offset` bytes."""
        offset = i64(offset) if isinstance(offset, int) else offset
        return self.builder.gep(base, [offset], inbounds=True)

    def load(self, address: ir.Value, align: int | None = None) -> ir.Value:
        """The vector at `address`."""
        value = self.builder.load(self.pointer(address))
        value.align = align or self.itemsize
        return value

    def store(self, value: ir.Value, address: ir.Value, align: int | None = None) -> None:
        """Store a vector at `address`."""
        self.builder.store(value, self.pointer(address)).align = align or self.itemsize

    def stream(self, value: ir.Value, address: ir.Value) -> None:
        """Store a vector at `address`, a multiple of its size, past the caches: `memory.settle`."""
        stored = self.builder.store(value, self.pointer(address))
        stored.align = self.lanes * self.itemsize
        mark = self.builder.module.add_metadata([ir.Constant(I32, 1)])
        stored.set_metadata("nontemporal", mark)

    def below(self, count: ir.Value, first: int = 0) -> ir.Value:
        """The mask of the lanes whose elements first, first + 1, ... are below `count` < 2^31."""
        if self.arm:
            return masks.first_lanes(self.builder, self.lanes, self.builder.sub(count, i64(first)))
        indices = ir.Constant(self.words, list(range(first, first + self.lanes)))
        return self.builder.icmp_signed("<", indices, self.splat_word(count))

    def load_masked(self, address: ir.Value, mask: ir.Value) -> ir.Value:
        """The vector at `address`: only lanes in `mask` are read, the others are zero."""
        pointer = self.pointer(address)
        return masks.load(self.builder, pointer, self.vector, mask, self.itemsize)

    def store_masked(self, value: ir.Value, address: ir.Value, mask: ir.Value) -> None:
        """Store only the lanes in `mask`."""
        masks.store(self.builder, value, self.pointer(address), mask, self.itemsize)

    def store_first(self, values: Values, addresses: Values, count: ir.Value) -> None:
        """Store the first `count` lanes of each value, or all lanes if there are fewer."""
        whole = self.builder.icmp_signed(">=", count, i64(self.lanes))
        with self.builder.if_else(whole) as (full, partial):
            with full:
                for value, address in zip(values, addresses, strict=True):
                    self.store(value, address)
            with partial:
                mask = self.below(count)
                for value, address in zip(values, addresses, strict=True):
                    self.store_masked(value, address, mask)

    def splat_word(self, value: ir.Value) -> ir.Value:
        """An int64 below 2^31 as a 32-bit integer in every lane."""
        undefined = ir.Constant(self.words, ir.Undefined)
        first = self.builder.trunc(value, I32)
        first = self.builder.insert_element(undefined, first, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, undefined, self.word(0))

    def splat(self, scalar: ir.Value) -> ir.Value:
        """A scalar in every lane."""
        undefined = ir.Constant(self.vector, ir.Undefined)
        first = self.builder.insert_element(undefined, scalar, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, undefined, self.word(0))

    def constant(self, value: float) -> ir.Value:
        """A constant in every lane."""
        return ir.Constant(self.vector, [float(value)] * self.lanes)

    def repeat_lanes(self, value: ir.Value, step: int, times: int, first: int) -> ir.Value:
        """The lanes first, first + step, ... of `value`, each of them repeated `times` times."""
        lanes = [lane // times * step + first for lane in range(self.lanes)]
        return self.builder.shuffle_vector(value, value, ir.Constant(self.words, lanes))

    def narrow(self, double: ir.Value) -> ir.Value:
        """A float64 as a scalar of the vector's element type."""
        if self.itemsize == 8:
            return double
        return self.builder.fptrunc(double, SCALAR[self.itemsize])

    def broadcast(self, address: ir.Value, align: int | None = None) -> ir.Value:
        """The element at `address` in every lane."""
        value = self.builder.load(self.pointer(address, self.scalar))
        value.align = align or self.itemsize
        return self.splat(value)

    def broadcasts(self, address: ir.Value, count: int, align: int | None = None) -> list[ir.Value]:
        """`count` contiguous elements, loaded at once, each of them in every lane."""
        if count == 1:
            return [self.broadcast(address, align)]
        value = self.builder.load(self.pointer(address, ir.VectorType(self.scalar, count)))
        value.align = align or self.itemsize
        return [self.builder.shuffle_vector(value, value, self.word(i)) for i in range(count)]

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a + b."""
        return self.builder.fadd(a, b)

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c, rounded once if the CPU has an FMA, else twice; an FMA is never emulated."""
        if not self.fma:
            return self.builder.fadd(self.builder.fmul(a, b), c)
        name = f"llvm.fma.{self.suffix}"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        function = internals.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [a, b, c])

    def dot_pairs(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """c + a[1] * b[1] + a[0] * b[0] for pairs of bfloat16 in the lanes of `a` and `b`.

        This is VDPBF16PS of AVX512_BF16: each product is added with one rounding to nearest even.
        On 64-bit Arm it is BFDOT, which adds the products first and rounds to odd. Both treat
        subnormal factors as zeros, and make zeros of subnormal sums.
        """
        pairs = ir.VectorType(internals.BFloat(), 2 * self.lanes)
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * self.lanes}"
        if self.arm:
            a, b = b, a  # the second factor may be an element of a register
            name = f"llvm.aarch64.neon.bfdot.{self.suffix}.v{2 * self.lanes}bf16"
        kind = ir.FunctionType(self.vector, [self.vector, pairs, pairs])
        function = internals.get_or_insert_function(self.builder.module, kind, name)
        a, b = (self.builder.bitcast(value, pairs) for value in (a, b))
        return self.builder.call(function, [c, a, b])

    def round_pairs(self, low: ir.Value, high: ir.Value) -> ir.Value:
        """Two vectors of floats as one of bfloat16, `low` first; x86 makes zeros of subnormals."""
        pairs = ir.VectorType(internals.BFloat(), 2 * self.lanes)
        if self.arm:
            places = ir.Constant(ir.VectorType(I32, pairs.count), list(range(pairs.count)))
            both = self.builder.shuffle_vector(low, high, places)
            return self.builder.bitcast(self.builder.fptrunc(both, pairs), self.vector)
        name = f"llvm.x86.avx512bf16.cvtne2ps2bf16.{32 * self.lanes}"
        kind = ir.FunctionType(pairs, [self.vector, self.vector])
        function = internals.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.bitcast(self.builder.call(function, [high, low]), self.vector)

    def at_least(self, value: ir.Value, low: ir.Value) -> ir.Value:
        """The larger of the two; a NaN `value` stays a NaN."""
        return self.builder.select(self.builder.fcmp_ordered("<", value, low), low, value)

    def at_most(self, value: ir.Value, high: ir.Value) -> ir.Value:
        """The smaller of the two; a NaN `value` stays a NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", value, high), high, value)

    def clamp(self, value: ir.Value, low: ir.Value, high: ir.Value) -> ir.Value:
        """`value` within [low, high]; a NaN stays a NaN."""
        return self.at_most(self.at_least(value, low), high)

    def bounded(self, low: ir.Value, high: ir.Value) -> ir.Value:
        """Whether the scalar bounds of a clamp are finite, at least one of them."""
        return self.builder.or_(
            self.builder.fcmp_ordered(">", low, ir.Constant(low.type, -math.inf)),
            self.builder.fcmp_ordered("<", high, ir.Constant(high.type, math.inf)),
        )

    def prefetch(self, address: ir.Value, locality: int) -> None:
        """Prefetch the cache line at `address`: locality 3 is into L1, 2 into L2."""
        kind = ir.FunctionType(VOID, [BYTES, I32, I32, I32])
        function = internals.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        flags = [ir.Constant(I32, value) for value in (0, locality, 1)]
        self.builder.call(function, [address, *flags])

    def opaque(self, value: ir.Value) -> ir.Value:
        """`value` with its origin hidden from LLVM, which would chain additions of addresses."""
        kind = ir.FunctionType(value.type, [value.type])
        return self.builder.call(ir.InlineAsm(kind, "", "=r,0"), [value])

    def in_order(self, values: list[ir.Value]) -> list[ir.Value]:
        """The vectors, of which LLVM computes all before what follows from any of them."""
        kinds, register = [value.type for value in values], "w" if self.arm else "v"
        constraints = [*[f"={register}"] * len(kinds), *map(str, range(len(kinds)))]
        result = ir.LiteralStructType(kinds) if len(kinds) > 1 else kinds[0]
        code = ir.InlineAsm(ir.FunctionType(result, kinds), "", ",".join(constraints))
        found = self.builder.call(code, values)
        if len(kinds) == 1:
            return [found]
        return [self.builder.extract_value(found, i) for i in range(len(kinds))]

    def loop(
        self,
        count: ir.Value,
        step: int | Callable[[ir.Value], ir.Value],
        carried: Values,
        body: Callable[[ir.Value, list[ir.Value]], Iterable[ir.Value]],
    ) -> list[ir.Value]:
        """Emit ``for index in range(0, count, step): carried = body(index, carried)``.

        `step` may also be a function that emits the step after an index.

        Returns
        -------
        list of ir.Value
            The carried values after the loop.
        """
        builder = self.builder
        before = builder.block
        inside, after = (builder.append_basic_block(name) for name in ("loop", "after"))
        builder.cbranch(builder.icmp_signed("<", i64(0), count), inside, after)
        builder.position_at_end(inside)
        phis = [builder.phi(value.type) for value in (i64(0), *carried)]
        stride = i64(step) if isinstance(step, int) else step(phis[0])
        results = list(body(phis[0], phis[1:]))
        following = builder.add(phis[0], stride)
        latch = builder.block
        for phi, first, again in zip(phis, (i64(0), *carried), (following, *results), strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(again, latch)
        builder.cbranch(builder.icmp_signed("<", following, count), inside, after)
        builder.position_at_end(after)
        return self._merged(carried, before, results, latch)

    def either(
        self,
        condition: ir.Value,
        yes: Callable[[], Iterable[ir.Value]],
        no: Callable[[], Iterable[ir.Value]],
    ) -> list[ir.Value]:
        """The values that `yes` emits where the condition holds, else those that `no` emits."""
        builder = self.builder
        with builder.if_else(condition) as (holds, fails):
            with holds:
                first, after_first = list(yes()), builder.block
            with fails:
                second, after_second = list(no()), builder.block
        return self._merged(first, after_first, second, after_second)

    def _merged(
        self, first: Values, after_first: ir.Block, second: Values, after_second: ir.Block
    ) -> list[ir.Value]:
        """The values `first` where control comes from block `after_first`, else `second`."""
        merged = []
        for one, other in zip(first, second, strict=True):
            phi = self.builder.phi(one.type)
            phi.add_incoming(one, after_first)
            phi.add_incoming(other, after_second)
            merged.append(phi)
        return merged


@dataclass(frozen=True)
class Integers(Emitter):
    """Builds operations on vectors of `lanes` signed integers of `itemsize` bytes.

    Sums wrap modulo 2^bits. A sum that fits is therefore exact, even where a part of it does not.
    """

    fma: bool = False

    @property
    def scalar(self) -> ir.Type:
        """The LLVM type of an element."""
        return ir.IntType(8 * self.itemsize)

    @property
    def suffix(self) -> str:
        """The name of a vector's type in the names of LLVM's intrinsics."""
        return f"v{self.lanes}i{8 * self.itemsize}"

    def constant(self, value: float) -> ir.Value:
        """A constant in every lane."""
        return ir.Constant(self.vector, [int(value)] * self.lanes)

    def narrow(self, double: ir.Value) -> ir.Value:
        """A float64 as an integer: the nearest one of its type for what is out of range."""
        name = f"llvm.fptosi.sat.i{8 * self.itemsize}.f64"
        kind = ir.FunctionType(self.scalar, [double.type])
        function = internals.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [double])

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """a + b."""
        return self.builder.add(a, b)

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c for factors of at most 32 bits, signs included."""
        if self.itemsize == 8:
            a, b = (self._low_word(value) for value in (a, b))
        return self.builder.add(self.builder.mul(a, b), c)

    def _low_word(self, value: ir.Value) -> ir.Value:
        """The low 32 bits of each lane, extended: LLVM then multiplies words, which is faster."""
        return self.builder.sext(self.builder.trunc(value, self.words), self.vector)

    def kept(self, value: ir.Value) -> ir.Value:
        """A vector with its origin hidden from LLVM: LLVM 22 compiles without end where an operand
        of VPDPBUSD has inverted sign bits.
        """
        kind = ir.FunctionType(self.vector, [self.vector])
        return self.builder.call(ir.InlineAsm(kind, "", "=v,0"), [value])

    def dot_quads(self, unsigned: ir.Value, signed: ir.Value, c: ir.Value) -> ir.Value:
        """c + unsigned[0] * signed[0] + ... + unsigned[3] * signed[3] for the bytes of each lane.

        This is VPDPBUSD of AVX512_VNNI and AVX_VNNI, which wraps and does not saturate.
        """
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"
        kind = ir.FunctionType(self.vector, [self.vector] * 3)
        function = internals.get_or_insert_function(self.builder.module, kind, name)
        return self.builder.call(function, [c, unsigned, signed])

    def at_least(self, value: ir.Value, low: ir.Value) -> ir.Value:
        """The larger of the two."""
        return self.builder.select(self.builder.icmp_signed("<", value, low), low, value)

    def at_most(self, value: ir.Value, high: ir.Value) -> ir.Value:
        """The smaller of the two."""
        return self.builder.select(self.builder.icmp_signed(">", value, high), high, value)
