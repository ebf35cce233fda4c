"""The committed counts of GPU kernels; test_assemble.py compares linked kernels with them."""

import json

import pytest

from implicit_conv.gpu.plan.families import GRADIENTS, ladder
from perf import gates, gpu_gates
from perf.bringup.sass import calls, instructions, mainloop

EXPECTED = json.loads(gates.EXPECTED.read_text())
# A mainloop of 5 instructions in a loop over tiles; two waits, one moved behind the kernel's end.
LISTING = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   UIADD3 UR4, UR4, 0x1, URZ ;
.L_x_1:
        /*0020*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R0], R2 ;
        /*0030*/              @!P0 BRA `(.L_x_1) ;
.L_x_2:
        /*0040*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R3], R2 ;
        /*0050*/              @!P0 BRA `(.L_x_5) ;
.L_x_3:
        /*0060*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0070*/                   HGMMA.64x256x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0080*/               @P1 BRA `(.L_x_2) ;
        /*0088*/                   CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div_s64) ;
        /*0090*/                   STG.E.128 desc[UR4][R2.64], R4 ;
        /*00a0*/               @P2 BRA `(.L_x_0) ;
.L_x_4:
        /*00b0*/                   EXIT ;
.L_x_5:
        /*00c0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R3], R2 ;
        /*00d0*/              @!P0 BRA `(.L_x_5) ;
        /*00e0*/              @P3 CALL.REL.NOINC `(.L_x_3) ;
        /*00f0*/                   BRA `(.L_x_3) ;
"""


def test_every_row_of_the_evidence_has_its_counts():
    names = [name for name, _, _ in gpu_gates.kernels()]
    rows = []
    for rung in ladder():
        rows += [f"{rung.family} {rung.target}"]
        rows += [f"{rung.family} with db {rung.target}"] if rung.family in GRADIENTS else []
    assert list(EXPECTED["gpu"]) == rows == names
    assert list(EXPECTED["gpu traffic"]) == [name for name, _, _ in gpu_gates.first_targets()]


def test_no_committed_kernel_spills():
    for name, counted in EXPECTED["gpu"].items():
        assert counted["spill_bytes"] == counted["stack_bytes"] == 0, name


def test_no_committed_kernel_calls_or_converts_slowly():
    """A 64-bit division would be a call; packed conversions run on the ordinary units."""
    for name, counted in EXPECTED["gpu"].items():
        assert (counted["calls"], counted["slow_conversions"]) == (0, 0), name


def test_stores_and_staging_cost_the_least():
    """Whole sectors of y, bias and residual; no bank conflicts."""
    for name, counted in EXPECTED["gpu traffic"].items():
        for access in gpu_gates.ACCESSES:
            _, cost, least = counted.get(access, (0, 0, 0))
            # Lanes load elements of x one by one in these families, and of w in the direct one.
            if name.startswith(("elements", "folded", "direct")) and access == "ld.global":
                continue
            if name.startswith("rows") and access in ("ld.global", "st.shared"):
                continue  # lanes stage pixels 32 bytes apart, and taps of the filter one by one
            assert cost == least, (name, access)


@pytest.mark.parametrize("case", gpu_gates.NARROW_CASES)
def test_narrow_groups_gain(case):
    """Whole sectors of pixels and of y; 20 times fewer instructions and 8 times fewer sectors.

    In so small a case a quarter of the loaded sectors, or two thirds, are those of staged taps.
    """
    made, before = (
        EXPECTED["gpu narrow groups"][f"{case}, {f}"] for f in gpu_gates.NARROW_FAMILIES
    )
    for access in ("ld.global of 16 bytes", "st.global", "ld.shared", "st.shared"):
        _, cost, least = made[access]
        assert cost == least, access
    assert made["instructions"] * 20 < before["instructions"]
    assert made["ld.global"][1] * 8 < before["ld.global"][1]
    assert made["st.global"][1] * 8 <= before["st.global"][1]


def test_calls_of_subroutines():
    """A call of a local label is a branch."""
    assert calls(LISTING) == 1


def test_the_mainloop_is_the_innermost_loop_that_multiplies():
    assert len(instructions(LISTING)) == 17
    assert mainloop(LISTING, ("HGMMA",)) == 5
    assert mainloop(LISTING, ("STG",)) == 11
    assert mainloop(LISTING, ("LDG",)) == 0
