"""The params blob: the one argument of every GPU kernel, a struct passed by value.

    128 bytes  tensor map of the activation        maps first: they must be 64-byte aligned
    128 bytes  tensor map of the filter
    8 each     the fields of Call
    4 each     the fields of Geometry
    4 each     the limits of a clamp, float32

As a grid constant it stays in the constant bank, where a tensor copy may read a map without the
fence that a map in global memory needs. Without that mark, or as a plain value, it would be copied
to local memory, which tensor copies do not see.
"""

import functools

from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu.call import Call, Limits, Params
from implicit_conv.kernels.gpu.ptx import SIMULATED, current_target, need_numba_cuda
from implicit_conv.kernels.gpu.sizes import MAP_BYTES

MAPS, CALL, GEOMETRY, LIMITS = range(4)  # fields of the struct


def pack(activation_map, filter_map, call, geometry, limits):
    """The blob's bytes; a map is 128 bytes, or None where the kernel does not use it."""
    import numpy as np

    maps = [
        bytes(value) if value is not None else bytes(MAP_BYTES)
        for value in (activation_map, filter_map)
    ]
    parts = [np.array(call, np.int64), np.array(geometry, np.int32), np.array(limits, np.float32)]
    blob = b"".join([*maps, *(part.tobytes() for part in parts)])
    return blob + bytes(-len(blob) % 8)  # a struct's size is a multiple of its alignment


def _struct():
    from llvmlite import ir

    words = ir.ArrayType(ir.IntType(64), 2 * MAP_BYTES // 8)
    call = ir.ArrayType(ir.IntType(64), len(Call._fields))
    geometry = ir.ArrayType(ir.IntType(32), len(Geometry._fields))
    return ir.LiteralStructType(
        [words, call, geometry, ir.ArrayType(ir.FloatType(), len(Limits._fields))]
    )


@functools.cache
def numba_type():
    """The type of the kernel's argument: for Numba a pointer, which `_mark` turns into a value."""
    from numba.cuda import types
    from numba.cuda.extending import models, register_model

    class Blob(types.Type):
        def __init__(self):
            super().__init__("ParamsBlob")

    @register_model(Blob)
    class BlobModel(models.PrimitiveModel):
        def __init__(self, manager, kind):
            super().__init__(manager, kind, _struct().as_pointer())

    return Blob()


def signature():
    """The signature of every kernel."""
    from numba.cuda import types

    return types.void(numba_type())


def _by_value(typed):
    """The argument attribute ``byval``; `typed` as the libNVVM of sm_100 and later spells it."""
    from llvmlite import ir

    class Attributes(ir.values.ArgumentAttributes):
        def _expand(self, name, kind):
            return f"{name}({kind.pointee})" if name == "byval" and typed else name

    attributes = Attributes()
    attributes.add("byval")
    attributes.align = 64
    return attributes


def _mark(builder):
    """Make the kernel's blob argument a by-value grid constant; once a kernel.

    Numba puts a return pointer before the arguments and removes it later, so the argument's place
    now is its number, counted from 1, in the finished kernel.
    """
    from llvmlite import ir
    from numba.cuda import cgutils

    kernel, module = builder.function, builder.module
    number = next(
        i for i, argument in enumerate(kernel.args) if argument.type == _struct().as_pointer()
    )
    if "byval" in kernel.args[number].attributes:
        return
    kernel.args[number].attributes = _by_value(typed=tuple(current_target()[:2]) >= (10, 0))
    numbers = module.add_metadata([ir.Constant(ir.IntType(32), number)])
    name = ir.MetaDataString(module, "grid_constant")
    annotations = cgutils.get_or_insert_named_metadata(module, "nvvm.annotations")
    annotations.add(module.add_metadata((kernel, name, numbers)))


def _pointer(builder, blob, *path):
    from llvmlite import ir

    steps = [ir.Constant(ir.IntType(32), step) for step in (0, *path)]
    return builder.gep(blob, steps, inbounds=True)


def _load_fields(context, builder, blob, index, kind):
    """One field of the struct as a value of the named tuple type `kind`."""
    from llvmlite import ir

    value = ir.Constant(context.get_value_type(kind), ir.Undefined)
    for at in range(len(kind)):
        loaded = builder.load(_pointer(builder, blob, index, at))
        value = builder.insert_value(value, loaded, at)
    return value


def _emit_unpack(context, builder, signature, arguments):
    """Maps as addresses, all else loaded; loads that are not used vanish."""
    from llvmlite import ir

    _mark(builder)
    parts = []
    for number in range(2):
        address = _pointer(builder, arguments[0], MAPS, number * MAP_BYTES // 8)
        parts.append(builder.ptrtoint(address, ir.IntType(64)))
    for index, kind in zip((CALL, GEOMETRY, LIMITS), signature.return_type.types[2:], strict=True):
        parts.append(_load_fields(context, builder, arguments[0], index, kind))
    value = ir.Constant(context.get_value_type(signature.return_type), ir.Undefined)
    for at, part in enumerate(parts):
        value = builder.insert_value(value, part, at)
    return value


def _unpack():
    """The hook `unpack(blob) -> Params`.

    To be called in the kernel itself: it marks the argument of the function it stands in, and a
    device function that takes the blob would take a copy.
    """
    if SIMULATED:
        return lambda params: params
    need_numba_cuda()
    from numba.cuda import types
    from numba.cuda.extending import intrinsic

    fields = [
        types.NamedUniTuple(element, len(kind._fields), kind)
        for element, kind in (
            (types.int64, Call),
            (types.int32, Geometry),
            (types.float32, Limits),
        )
    ]
    returns = types.NamedTuple([types.uint64, types.uint64, *fields], Params)

    @intrinsic
    def unpack(typingctx, blob):
        return returns(blob), _emit_unpack

    return unpack


unpack = _unpack()
