"""Small PTX kernels for the interpreter's tests: a body between declarations and `ret`.

`TEXTS` collects all that a test session has made, for the test of opcodes that no test covers.
"""

REGISTERS = (
    ".reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<96>; .reg .b64 %d<32>; "
    ".reg .f32 %f<160>; .reg .f64 %e<8>;"
)


def kernel(body, parameters=".param .u64 x", target="sm_90a", shared="", functions=""):
    """A module with one entry; if the first parameter is an address, it is in %d1."""
    first = parameters.split(",", maxsplit=1)[0].split()
    load = f"ld.param.u64 %d1, [{first[-1]}];" if ".u64" in first else ""
    return f"""
.version 8.6
.target {target}
.address_size 64
{shared}
{functions}
.visible .entry k({parameters})
{{
{REGISTERS}
{load}
{body}
ret;
}}
"""


# The address of this thread's element of 4 bytes in %d2, with its number in %r1.
ELEMENT = "mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d2, %d1, %d2;"
