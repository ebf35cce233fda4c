"""The closed forms of the load schedule equal their definitions, buffer by buffer."""

import math
import sys

from hypothesis import given
from hypothesis import strategies as st
from sampling import examples

from implicit_conv.kernels import schedule
from implicit_conv.kernels.geometry import UNLIMITED, ZEROS, Geometry


@st.composite
def filter_rows(draw):
    """A geometry of one filter row, with as many phase buffers as strides or taps need."""
    taps, dilation, stride = (draw(st.integers(1, most)) for most in (40, 20, 20))
    remainders = min(taps, stride // math.gcd(stride, dilation))
    phases = draw(st.sampled_from([remainders, taps]))
    sizes = {"S": taps, "dilation_w": dilation, "step_w": stride, "phases_w": phases}
    sizes |= {"remainders_w": remainders}
    return Geometry(**{**dict.fromkeys(Geometry._fields, 1), **sizes, "w_offset_max": UNLIMITED})


@st.composite
def output_rows(draw):
    """A geometry of rows, of which some may read padding alone, and where it has any."""
    most = {"H": 12, "R": 7, "stride_h": 4, "dilation_h": 6}
    sizes = {name: draw(st.integers(1, end)) for name, end in most.items()}
    sizes |= {"pad_h": draw(st.integers(-3, 12)), "padding_mode": draw(st.sampled_from([ZEROS, 1]))}
    return Geometry(**{**dict.fromkeys(Geometry._fields, 1), **sizes})


@examples(500, 5000)
@given(g=output_rows(), p=st.integers(0, 12), rows=st.integers(1, 20))
def test_rows_that_multiply_the_same_filter_rows(g, p, rows):
    def needed(row):
        at = [row * g.stride_h - g.pad_h + r * g.dilation_h for r in range(g.R)]
        return [g.padding_mode != ZEROS or 0 <= h < g.H for h in at]

    alike = [needed(row) == needed(p) for row in range(p, p + rows)]
    assert schedule.rows_alike(g, p, rows) == [*alike, False].index(False)


@st.composite
def row_phases(draw):
    """A geometry of one filter column, with as many row phases as strides or taps need."""
    taps, dilation, stride = (draw(st.integers(1, most)) for most in (40, 20, 20))
    remainders = min(taps, stride // math.gcd(stride, dilation))
    phases = draw(st.sampled_from([remainders, taps]))
    sizes = {"R": taps, "dilation_h": dilation, "stride_h": stride, "phases_h": phases}
    return Geometry(**{**dict.fromkeys(Geometry._fields, 1), **sizes})


@examples(500, 5000)
@given(g=row_phases(), rows=st.integers(1, 20))
def test_rows_that_a_tile_needs(g, rows):
    """Image rows by their definition: those that some tap of some output row reads."""
    read = {p * g.stride_h + r * g.dilation_h for p in range(rows) for r in range(g.R)}
    found = {
        schedule.first_row(g, 0, a) + g.pad_h + i * g.stride_h
        for a in range(g.phases_h)
        for i in range(rows + schedule.row_halo(g, a))
        if schedule.row_needed(g, i, rows, a)
    }
    assert found == read


def test_a_row_of_a_tall_filter_takes_as_many_steps_as_that_of_a_low_one():
    """Each row of each tile asks; a search among the taps took 30 times the products' time."""

    def steps(taps):
        g = Geometry(**{**dict.fromkeys(Geometry._fields, 1), "R": taps})
        found = []
        sys.settrace(lambda frame, *_: lambda *event: found.append(event))
        try:
            schedule.row_needed(g, taps, 1, 0)
        finally:
            sys.settrace(None)
        return len(found)

    assert steps(300) == steps(3)


@examples(200, 5000)
@given(g=filter_rows())
def test_halos_and_taps(g):
    halos = [schedule.column_halo(g, b) for b in range(g.phases_w)]
    axis = g.S, g.phases_w, g.dilation_w, g.step_w, g.w_offset_max
    sums = [schedule.halo_before(b, *axis) for b in range(g.phases_w + 1)]
    assert sums == [sum(halos[:b]) for b in range(g.phases_w + 1)]
    assert schedule.halo_max(g) == max(halos)
    order = sorted(range(g.S), key=lambda tap: (tap % g.remainders_w, tap))
    assert [schedule.column_tap(g, i) for i in range(g.S)] == order
