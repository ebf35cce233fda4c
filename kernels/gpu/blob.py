"""The params blob: the one argument of every GPU kernel, a struct passed by value.

    128 bytes  tensor map of the activation        maps first: they must be 64-byte aligned
    128 bytes  tensor map of the filter
    8 each     the fields of Call
    4 each     the fields of Geometry
    4 each     the limits of a clamp, float32

As a grid constant it stays in the constant bank, where a tensor copy may read a map without the
fence that a map in global memory needs. Without that attribute, or as a plain value, the compiler
would copy it to local memory, which tensor copies cannot read. The host packs it (call.pack).
"""

from __future__ import annotations

import functools
from typing import Any

from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu.call import Call, Limits, Params
from implicit_conv.kernels.gpu.intrinsic import cuda_module, current_target
from implicit_conv.kernels.gpu.sizes import MAP_BYTES

MAPS, CALL, GEOMETRY, LIMITS = range(4)  # fields of the struct


def _struct() -> Any:
    """The LLVM type of the blob."""
    from implicit_conv.kernels.gpu.llvm import ir

    words = ir.ArrayType(ir.IntType(64), 2 * MAP_BYTES // 8)
    call = ir.ArrayType(ir.IntType(64), len(Call._fields))
    geometry = ir.ArrayType(ir.IntType(32), len(Geometry._fields))
    return ir.LiteralStructType(
        [words, call, geometry, ir.ArrayType(ir.FloatType(), len(Limits._fields))]
    )


@functools.cache
def numba_type() -> Any:
    """The type of the kernel's argument: a pointer for Numba, which `_mark` makes a value."""
    extending = cuda_module("extending")
    kind_of_type: Any = cuda_module("types").Type
    kind_of_model: Any = extending.models.PrimitiveModel

    class Blob(kind_of_type):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("ParamsBlob")

    class BlobModel(kind_of_model):  # type: ignore[misc]
        def __init__(self, manager: Any, kind: Any) -> None:
            super().__init__(manager, kind, _struct().as_pointer())

    extending.register_model(Blob)(BlobModel)

    return Blob()


def signature() -> Any:
    """The signature of every kernel."""
    return cuda_module("types").void(numba_type())


def _by_value(typed: bool) -> Any:
    """The argument attribute ``byval``, with its type (`typed`) for sm_100 and later."""
    from implicit_conv.kernels.gpu.llvm import ir

    class Attributes(ir.values.ArgumentAttributes):  # type: ignore[misc]
        def _expand(self, name: str, kind: Any) -> str:
            """The spelling that libNVVM expects of an attribute."""
            return f"{name}({kind.pointee})" if name == "byval" and typed else name

    attributes = Attributes()
    attributes.add("byval")
    attributes.align = 64
    return attributes


def _mark(builder: Any) -> None:
    """Make the kernel's blob argument a by-value grid constant, once per kernel.

    Numba puts a return pointer before the arguments and removes it later. So the argument's index
    here, counted from 0, is its number in the finished kernel, counted from 1.
    """
    from implicit_conv.kernels.gpu.llvm import ir

    kernel, module = builder.function, builder.module
    number = next(
        i for i, argument in enumerate(kernel.args) if argument.type == _struct().as_pointer()
    )
    if "byval" in kernel.args[number].attributes:
        return
    kernel.args[number].attributes = _by_value(typed=tuple(current_target()[:2]) >= (10, 0))
    numbers = module.add_metadata([ir.Constant(ir.IntType(32), number)])
    name = ir.MetaDataString(module, "grid_constant")
    annotations = cuda_module("cgutils").get_or_insert_named_metadata(module, "nvvm.annotations")
    annotations.add(module.add_metadata((kernel, name, numbers)))


def _pointer(builder: Any, blob: Any, *path: int) -> Any:
    from implicit_conv.kernels.gpu.llvm import ir

    steps = [ir.Constant(ir.IntType(32), step) for step in (0, *path)]
    return builder.gep(blob, steps, inbounds=True)


def _load_fields(context: Any, builder: Any, blob: Any, index: int, kind: Any) -> Any:
    """One field of the struct as a value of the named tuple type `kind`."""
    from implicit_conv.kernels.gpu.llvm import ir

    value = ir.Constant(context.get_value_type(kind), ir.Undefined)
    for at in range(len(kind)):
        loaded = builder.load(_pointer(builder, blob, index, at))
        value = builder.insert_value(value, loaded, at)
    return value


def _emit_unpack(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """The addresses of the maps and all other fields; unused loads are optimised away."""
    from implicit_conv.kernels.gpu.llvm import ir

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


def _unpack() -> Any:
    """The hook `unpack(blob) -> Params`.

    The kernel itself must call it, because it marks the argument of the function that calls it, and
    a device function would receive a copy of the blob.
    """
    types = cuda_module("types")

    fields = [
        types.NamedUniTuple(element, len(kind._fields), kind)
        for element, kind in (
            (types.int64, Call),
            (types.int32, Geometry),
            (types.float32, Limits),
        )
    ]
    returns = types.NamedTuple([types.uint64, types.uint64, *fields], Params)

    def unpack(typingctx: Any, blob: Any) -> Any:
        return returns(blob), _emit_unpack

    return cuda_module("extending").intrinsic(unpack)


unpack = _unpack()
