"""What this package takes of JAX besides its public interface. All of it stands here."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
from jax._src import dispatch
from jax._src.interpreters import mlir
from jax._src.lax import convolution

CONV = convolution.conv_general_dilated_p
TRANSPOSES = (
    convolution._conv_general_dilated_transpose_lhs,
    (convolution._conv_general_dilated_transpose_rhs),
)
apply_primitive = dispatch.apply_primitive


def own_lowering() -> Any:
    """JAX's own rule by which convolutions are lowered for the CPU."""
    rules: dict[Any, Any] = mlir._platform_specific_lowerings["cpu"]
    found = rules.get(CONV) or mlir._lowerings[CONV]
    return getattr(found, "rule", found)  # JAX 0.6 keeps rules in entries


def allow_in_shard_map(primitive: Any) -> None:
    """Tell `shard_map` that a primitive is like most: what it gives is alike on devices on which
    all that it takes is. Since JAX 0.7 the types of its results tell that.
    """
    if jax.__version_info__ < (0, 7):
        from jax.experimental import shard_map

        for name in ("register_standard_check", "register_standard_rewrite"):
            getattr(shard_map, name, lambda primitive: None)(primitive)


def is_alone(ctx: Any) -> bool:
    """Whether what is lowered runs as it is: on one device, or on each device by itself, and in
    this process. Else XLA divides it, or JAX writes it for other processes.
    """
    module = ctx.module_context
    if module.lowering_parameters.for_export:
        return False
    axes = module.axis_context
    manual = getattr(axes, "manual_axes", None)
    if manual is not None:
        return set(manual) == set(axes.mesh.axis_names)
    devices: int = getattr(axes, "num_devices", 1)  # each replica of pmap has a program of its own
    return devices == 1


def interface_version() -> int:
    """The minor version of the foreign function interface of the XLA that is installed.

    Raises
    ------
    ImportError
        Its header does not tell.
    """
    header = Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    versions = dict(re.findall(r"XLA_FFI_API_(MAJOR|MINOR) (\d+)", header.read_text()))
    if versions.get("MAJOR") != "0" or "MINOR" not in versions:
        raise ImportError(
            f"jax {jax.__version__} has version {versions} of XLA's foreign function interface, "
            "and implicit_conv.jax knows 0.x; install a JAX that is older"
        )
    return int(versions["MINOR"])
