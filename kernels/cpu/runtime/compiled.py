"""The schedule's plain functions, compiled: `schedule.tap_shift(...)` inside CPU kernels.

The functions of kernels/schedule.py call one another as ordinary globals. Each of them is therefore
rebuilt over a namespace whose functions are compiled already (a module defines its functions in
order of use).
"""

import types
from typing import Any

from implicit_conv.kernels import schedule as plain
from implicit_conv.kernels.cpu.runtime.cache import kernel


def compile_module(module: types.ModuleType) -> Any:
    """A module like `module` whose functions compiled code may call."""
    namespace = dict(vars(module))
    for name, value in vars(module).items():
        if isinstance(value, types.FunctionType):
            copy = types.FunctionType(
                value.__code__, namespace, name, value.__defaults__, value.__closure__
            )
            namespace[name] = kernel()(copy)
    compiled = types.ModuleType(f"{module.__name__} (compiled)", module.__doc__)
    vars(compiled).update(namespace)
    return compiled


schedule = compile_module(plain)
