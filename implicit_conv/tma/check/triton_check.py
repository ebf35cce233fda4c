"""Check Triton and Gluon kernels without a GPU: compile them for a target, and run their PTX."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from implicit_conv import ptx
from implicit_conv.ptx.targets import number_of
from implicit_conv.tma.check.kernel_check import MapArgument, Size, check_kernel
from implicit_conv.tma.check.kernel_report import KernelReport
from implicit_conv.tma.check.logged import driver_arguments
from implicit_conv.tma.maps.driver import our_name
from implicit_conv.tma.maps.maps import Im2colMap, TensorMap
from implicit_conv.tma.maps.tiled import TiledMap
from implicit_conv.tma.run.simulate import Array

LANES = 32
# Bytes. Triton declares shared memory with 16, and counts on the 1,024 that a kernel without static
# shared memory is given.
SHARED_ALIGNMENT = 1024


def check_triton(
    fn: Any,
    grid: Size,
    arguments: Mapping[str, Any],
    target: str = "sm_90a",
    *,
    launch: Mapping[str, Any] | None = None,
    expected: Mapping[str, Array] | None = None,
    **options: Any,
) -> KernelReport:
    """Compile a kernel of Triton or Gluon for a target, run it, and check its tensor copies.

    Parameters
    ----------
    fn : function decorated by triton.jit or gluon.jit
    grid : int or tuple of up to three int
        Blocks.
    arguments : mapping of name -> value
        The kernel's arguments: numpy arrays or torch tensors of the CPU for pointers, Triton's
        `TensorDescriptor` or Gluon's `TensorDescriptor` and `TensorDescriptorIm2Col` of such
        tensors, numbers, and the values of constexprs. The kernel writes into the tensors.
    target : str
        The GPU to compile for, "sm_90a" by default; none is needed.
    launch : mapping, optional
        Triton's options of a launch, such as num_warps and num_stages.
    expected : dict of name -> array, optional
        What arguments hold afterwards.
    **options
        As in `check_kernel`. Triton leaves out fences that PTX asks for between the
        initialisation of an mbarrier and copies; `unfenced_barriers=True` accepts that.

    Returns
    -------
    KernelReport
        The numbers of its arguments are those of the compiled kernel's parameters: a descriptor is
        the map, its shape and its strides.

    Raises
    ------
    ImportError
        Triton is not installed.
    ptx.UnsupportedError
        The kernel uses what the interpreter does not cover, such as tcgen05.
    ValueError
        An argument is not on the CPU, or the interpreter does not model a descriptor.

    Examples
    --------
    ``copy`` is decorated by triton.jit and copies SIZE elements of one array to another:

    >>> import numpy as np
    >>> from implicit_conv import tma
    >>> x, y = np.ones(128, np.float32), np.zeros(128, np.float32)
    >>> arguments = {"x": x, "y": y, "SIZE": 128}
    >>> report = tma.check_triton(copy, 1, arguments)  # doctest: +SKIP
    >>> print(report)  # doctest: +SKIP
    """
    compiled, bound, signature = _compiled(fn, arguments, target, dict(launch or {}))
    text, metadata = compiled.asm["ptx"], compiled.metadata
    described = iter(getattr(metadata, "tensordesc_meta", None) or ())
    passed: list[Any] = []
    places: dict[str, int] = {}
    for name, kind in signature.items():
        value = bound[name]
        if kind == "constexpr":
            continue
        places[name] = len(passed)
        if not isinstance(kind, str):
            raise ValueError(f"the argument {name} is a tuple, which is not supported")
        if kind.startswith("tensordesc"):
            passed += [_map_argument(value, next(described)), *value.shape, *value.strides]
        else:
            passed.append(_array(name, value) if kind.startswith("*") else value)
    sizes = (grid,) if isinstance(grid, int) else grid
    scratch = getattr(metadata, "global_scratch_size", 0) * math.prod(sizes)
    passed += [np.zeros(scratch, np.uint8)] if scratch else []
    passed += [None] * (len(ptx.parse(text).parameters) - len(passed))  # of scratch memory
    return check_kernel(
        text,
        grid,
        LANES * metadata.num_warps,
        passed,
        target,
        expected={places[name]: array for name, array in (expected or {}).items()},
        **{"shared_bytes": metadata.shared, "shared_alignment": SHARED_ALIGNMENT, **options},
    )


class _Pointer:
    """An array as Triton takes a pointer."""

    def __init__(self, array: Array) -> None:
        self.dtype, self.array = array.dtype, array

    def data_ptr(self) -> int:
        """The address, whose alignment Triton compiles into the kernel."""
        return int(self.array.ctypes.data) // 16 * 16  # the interpreter aligns all arrays


def _compiled(
    fn: Any, arguments: Mapping[str, Any], target: str, launch: dict[str, Any]
) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """(the compiled kernel, all arguments by name, their types), as JITFunction.run makes them."""
    compiler = importlib.import_module("triton.compiler")
    backends = importlib.import_module("triton.backends.compiler")
    jit = importlib.import_module("triton.runtime.jit")
    gpu = backends.GPUTarget("cuda", number_of(target)[0], LANES)
    backend = compiler.make_backend(gpu)
    bind = jit.create_function_from_signature(fn.signature, fn.params, backend)
    given = {
        name: _Pointer(value) if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }
    bound, specialization, options = bind(**given, **launch)
    packed = fn._pack_args(backend, launch, bound, specialization, options)
    options, signature, constants, attributes = packed
    source = compiler.ASTSource
    if fn.is_gluon():
        source = importlib.import_module("triton.experimental.gluon._runtime").GluonASTSource
    made = source(fn, signature, constants, attributes)
    return compiler.compile(made, target=gpu, options=options.__dict__), bound, signature


def _map_argument(descriptor: Any, meta: Mapping[str, Any]) -> MapArgument:
    """The map that Triton encodes for a descriptor, on the memory of its tensor."""
    base = _array("of a descriptor", descriptor.base)
    shape, strides = tuple(descriptor.shape), tuple(descriptor.strides)
    array = np.lib.stride_tricks.as_strided(
        base, shape, tuple(base.itemsize * stride for stride in strides)
    )
    driver = importlib.import_module("triton.backends.nvidia.driver")
    kind = driver.TMA_DTYPE_DEVICE_TO_HOST[meta["elem_type"]]
    kind = driver.TMA_TF32 if descriptor.round_f32_to_tf32 else kind
    fill, swizzle = int(descriptor.padding == "nan"), meta["swizzle"]
    values = [0, swizzle, base.itemsize, kind, meta["block_size"], shape, strides, fill]
    common: dict[str, Any] = {
        "shape": shape,
        "dtype": base.dtype,
        "swizzle": our_name("swizzle", swizzle),
        "oob_fill": our_name("oobFill", fill),
        "strides": array.strides[:-1],
    }
    if not meta.get("is_im2col", False):
        call = driver_arguments("fill_tma_descriptor_tiled", values)
        map: TensorMap = TiledMap(box=meta["block_size"], **common)
        return MapArgument(map, array, call)
    steps = descriptor.element_strides or (1,) * len(shape)
    lower, upper = descriptor.pixel_box_lower_corner, descriptor.pixel_box_upper_corner
    call = driver_arguments("fill_tma_descriptor_im2col", [*values, lower, upper, steps])
    map = Im2colMap(
        lower_corner=lower,
        upper_corner=upper,
        traversal_stride=tuple(steps[1:-1]),
        pixels_per_column=meta["block_size"][0],
        channels_per_pixel=meta["block_size"][1],
        **common,
    )
    return MapArgument(map, array, call)


def _array(name: str, value: Any) -> Array:
    """The memory of a pointer's tensor as an array; bfloat16 of torch is uint16."""
    if isinstance(value, _Pointer):
        return value.array
    if value.device.type != "cpu":
        raise ValueError(f"the tensor {name} is on {value.device}; pass one of the CPU")
    value = value.detach()
    if str(value.dtype) == "torch.bfloat16":
        value = value.view(importlib.import_module("torch").uint16)
    array: Array = value.numpy()
    return array
