"""Loads and stores of some of the lanes of a vector.

A mask is a vector of bits where LLVM shall emit masked loads and stores. NEON has none, so on
64-bit Arm a mask is an integer, whose lowest bit is that of the first lane, and code branches on
each bit. LLVM would do this too, but it would first compute the mask as a vector and move it to an
integer register. Masks of both kinds are combined by `and_`, `not_` and `select`.
"""

from implicit_conv.kernels.cpu.emit import internals
from implicit_conv.kernels.cpu.emit.internals import ir

I32 = ir.IntType(32)
SUFFIXES = {ir.FloatType(): "f32", ir.DoubleType(): "f64"}  # in the names of LLVM's intrinsics


def first_lanes(builder: ir.IRBuilder, lanes: int, count: ir.Value) -> ir.Value:
    """The first `count` of `lanes` lanes as an integer; none if count < 0, all if count > lanes."""
    none, every = (ir.Constant(count.type, value) for value in (0, lanes))
    count = builder.select(builder.icmp_signed("<", none, count), count, none)
    count = builder.select(builder.icmp_signed("<", count, every), count, every)
    others = builder.shl(ir.Constant(count.type, -1), count)
    return builder.trunc(builder.not_(others), ir.IntType(lanes))


def load(
    builder: ir.IRBuilder, pointer: ir.Value, kind: ir.VectorType, mask: ir.Value, align: int
) -> ir.Value:
    """The vector of type `kind` at `pointer`; only lanes in `mask` are read, others are zero."""
    value = ir.Constant(kind, None)
    if isinstance(mask.type, ir.VectorType):
        return _call(builder, "load", kind, kind, [pointer, ir.Constant(I32, align), mask, value])
    for lane in range(kind.count):
        before = builder.block
        with builder.if_then(_bit(builder, mask, lane)):
            element = builder.load(_element(builder, pointer, kind, lane))
            element.align = align
            loaded = builder.insert_element(value, element, ir.Constant(I32, lane))
            end = builder.block
        either = builder.phi(kind)
        either.add_incoming(value, before)
        either.add_incoming(loaded, end)
        value = either
    return value


def store(
    builder: ir.IRBuilder, value: ir.Value, pointer: ir.Value, mask: ir.Value, align: int
) -> None:
    """Store only the lanes in `mask`."""
    if isinstance(mask.type, ir.VectorType):
        arguments = [value, pointer, ir.Constant(I32, align), mask]
        _call(builder, "store", value.type, ir.VoidType(), arguments)
        return
    for lane in range(value.type.count):
        with builder.if_then(_bit(builder, mask, lane)):
            element = builder.extract_element(value, ir.Constant(I32, lane))
            address = _element(builder, pointer, value.type, lane)
            builder.store(element, address).align = align


def _call(
    builder: ir.IRBuilder,
    name: str,
    vector: ir.VectorType,
    result: ir.Type,
    arguments: list[ir.Value],
) -> ir.Value:
    """Call a masked load or store of LLVM for vectors of type `vector`."""
    element = vector.element
    suffix = f"i{element.width}" if isinstance(element, ir.IntType) else SUFFIXES[element]
    kind = ir.FunctionType(result, [argument.type for argument in arguments])
    full = f"llvm.masked.{name}.v{vector.count}{suffix}.p0"
    return builder.call(internals.get_or_insert_function(builder.module, kind, full), arguments)


def _bit(builder: ir.IRBuilder, mask: ir.Value, lane: int) -> ir.Value:
    """Whether a lane is in a mask that is an integer."""
    return builder.trunc(builder.lshr(mask, ir.Constant(mask.type, lane)), ir.IntType(1))


def _element(
    builder: ir.IRBuilder, pointer: ir.Value, vector: ir.VectorType, lane: int
) -> ir.Value:
    """The address of a lane of the vector at `pointer`."""
    first = builder.bitcast(pointer, vector.element.as_pointer())
    return builder.gep(first, [ir.Constant(I32, lane)])
