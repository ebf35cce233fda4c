"""Hooks: integer arithmetic that Numba would do in 64 bits."""

from __future__ import annotations

from implicit_conv.kernels.gpu.ptx import instruction


@instruction(
    "{ .reg .u32 multiplier, shift, twice; mov.b64 {multiplier, shift}, $2; add.u32 twice, $1, $1; "
    "mul.hi.u32 twice, twice, multiplier; shr.u32 $0, twice, shift; }",
    "rl",
    "i",
    memory=False,
)
def divide(n: int, reciprocal: int) -> int:
    """``mul.hi.u32``: n / divisor for 0 <= n < 2**31 and the divisor's `call.reciprocal`.

    PTX ISA 9.7.1, sm_80.
    """


@instruction(
    "{ .reg .pred p; setp.lt.u32 p, $1, $2; selp.u32 $0, $3, 0, p; }", "rrr", "i", memory=False
)
def below(n: int, bound: int, value: int) -> int:
    """``setp.lt.u32`` and ``selp``: the value if 0 <= n < bound, else 0.

    PTX ISA 9.7.6 and 9.7.7, sm_80.
    """


@instruction("div.u32 $0, $1, $2;", "rr", "i", memory=False)
def quotient(n: int, divisor: int) -> int:
    """``div.u32``: n / divisor, for divisions outside of loops, whose divisor is any number.

    PTX ISA 9.7.1, sm_80.
    """
