"""The schedule's plain functions, compiled: `schedule.tap_shift(...)` inside CPU kernels.

The functions of kernels/schedule.py call one another as ordinary globals, so each is rebuilt over a
namespace in which its callees are compiled already (a module's functions stand in order of use).
"""

import types

from numba.extending import register_jitable

from implicit_conv.kernels import schedule as plain


def compile_module(module):
    """A namespace like `module` whose functions compiled code may call."""
    namespace = dict(vars(module))
    for name, value in vars(module).items():
        if isinstance(value, types.FunctionType):
            copy = types.FunctionType(
                value.__code__, namespace, name, value.__defaults__, value.__closure__
            )
            namespace[name] = register_jitable(copy)
    return types.SimpleNamespace(**namespace)


schedule = compile_module(plain)
