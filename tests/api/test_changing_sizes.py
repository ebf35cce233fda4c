"""Calls whose sizes change: a new size of a known kind takes over the choice of a near one."""

import collections
import functools
import sys
import threading
import time
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import implicit_conv as ic
from implicit_conv.cpu.candidates import kernel_method
from implicit_conv.cpu.engines import kinds
from implicit_conv.cpu.plan import planner, tuning_cache
from implicit_conv.kernels.cpu.runtime import code
from implicit_conv.operators import dispatch
from implicit_conv.problem import reference
from implicit_conv.problem.options import LAYOUTS_OF
from implicit_conv.problem.problem import CACHED, Problem
from implicit_conv.process import cache, preparation
from implicit_conv.process.cache import cached_property
from implicit_conv.process.disk import Store
from implicit_conv.testing import Case

# Kinds: (function, shape of x without its sizes, shape of w, options, extents of the sizes).
KINDS = {
    "3x3": ("conv2d", (3, 16), (16, 16, 3, 3), {"padding": 1}, (16, 31)),
    "1x1": ("conv2d", (1, 24), (40, 24, 1, 1), {}, (8, 15)),
    "stride": ("conv2d", (2, 3), (20, 3, 5, 5), {"stride": 2, "padding": 2}, (32, 63)),
    "depthwise": ("conv2d", (1, 20), (20, 1, 3, 3), {"padding": 1, "groups": 20}, (16, 31)),
    "groups": ("conv2d", (1, 16), (16, 4, 3, 3), {"padding": "same", "groups": 4}, (16, 31)),
    "signal": ("conv1d", (1, 20), (33, 20, 5), {"padding": 2}, (64, 127)),
    "volume": ("conv3d", (1, 4), (6, 4, 3, 3, 3), {"padding": 1}, (8, 15)),
}
MOST_CALLS = 400  # of Python, by a new size of a known kind (on a Xeon 300 to 350, 2026-11)
WINDOW = {"stride": (2, 2), "pads": [(1, 1)] * 2, "dilation": (1, 1)}


@pytest.fixture(autouse=True)
def _no_kinds_before():
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def searches(monkeypatch):
    """The problems that all methods were asked about."""
    found = []
    estimated = planner.estimated

    def counted(query):
        found.append(query.problem)
        return estimated(query)

    monkeypatch.setattr(planner, "estimated", counted)
    return found


def integers(rng, shape, dtype=np.float32):
    return rng.integers(-3, 4, shape).astype(dtype)


def convolved(problem, x, w):
    """The convolution in float64, in the layout of the problem."""
    pads = list(zip(problem.pad_lo, problem.pad_hi, strict=True))
    window = {"stride": problem.stride, "pads": pads, "dilation": problem.dilation}
    first = np.moveaxis(x, -1, 1) if problem.channels_last else x
    y = reference.conv(first, w, groups=problem.groups, **window)
    return np.moveaxis(y, 1, -1) if problem.channels_last else y


def sizes_of(name, count, last=False, seed=7, extents=None):
    """Calls of `count` random sizes of a kind, of one range, each with the result that it has."""
    function, (n, c), w_shape, options, own = KINDS[name]
    rng, rank = np.random.default_rng(seed), len(w_shape) - 2
    low, high = extents or own
    w = integers(rng, w_shape)
    layout = LAYOUTS_OF[rank][last]
    conv = functools.partial(getattr(ic, function), layout=layout, **options)
    for _ in range(count):
        size = rng.integers(low, high + 1, rank)
        x = integers(rng, (n, *size, c) if last else (n, c, *size))
        problem = Problem.parse(x.shape, w.shape, rank=rank, layout=layout, **options)
        yield functools.partial(conv, x, w), convolved(problem, x, w)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_near_sizes_are_searched_once_and_are_right(name, last, threads, searches):
    with ic.config(num_threads=threads):
        for call, expected in sizes_of(name, 8, last):
            np.testing.assert_allclose(call(), expected, atol=1e-3)
            np.testing.assert_allclose(call(), expected, atol=1e-3)
    assert len(searches) == 1


@pytest.mark.parametrize("name", ["3x3", "1x1", "depthwise"])
def test_strides_that_a_near_choice_does_not_take(name):
    """Other methods are then asked, as for the first size."""
    for number, (call, expected) in enumerate(sizes_of(name, 6)):
        x, w = call.args
        if number % 2:
            x = np.repeat(x, 2, axis=3)[..., ::2]
        elif number:
            x = np.ascontiguousarray(x[..., ::-1].transpose(0, 1, 3, 2)).transpose(0, 1, 3, 2)
            x = x[..., ::-1]
        out = np.zeros((*expected.shape, 2), np.float32)[..., 0]
        y = call.func(x, w, out=out, **call.keywords)
        np.testing.assert_allclose(y, expected, atol=1e-3)


@pytest.mark.parametrize("name", KINDS)
def test_strict_bits_do_not_depend_on_the_sizes_before(name):
    rng = np.random.default_rng(3)
    function, (n, c), w_shape, options, (low, high) = KINDS[name]
    conv = functools.partial(getattr(ic, function), precision="strict", **options)
    w = rng.standard_normal(w_shape, np.float32)
    sizes = rng.integers(low, high + 1, (4, len(w_shape) - 2))
    inputs = [rng.standard_normal((n, c, *size), np.float32) for size in sizes]
    together = [conv(x, w) for x in inputs]
    for x, y in zip(inputs, together, strict=True):
        cache.clear()
        np.testing.assert_array_equal(conv(x, w), y)


def test_gradients_and_transposed_sizes_are_searched_once(searches):
    rng = np.random.default_rng(5)
    w = integers(rng, (16, 8, 3, 3))
    found = []
    for height, width in ((40, 36), (38, 60), (58, 44), (36, 36)):
        x = integers(rng, (1, 8, height, width))
        problem = Problem.parse(x.shape, w.shape, stride=2, padding=1)
        dy = integers(rng, problem.output_shape)
        dx = ic.conv2d_input_grad(dy, w, x.shape, stride=2, padding=1)
        np.testing.assert_allclose(dx, reference.input_grad(dy, w, x.shape, **WINDOW), atol=1e-3)
        dw = ic.conv2d_weight_grad(x, dy, w.shape, stride=2, padding=1)
        expected = reference.weight_grad(x, dy, w.shape[2:], **WINDOW)
        np.testing.assert_allclose(dw, expected, atol=1e-2)
        found.append(len(searches))
    # The gradient, its four phases, the products of its fold, and the weight gradient.
    assert found == [7] * 4


@pytest.mark.parametrize(("taps", "stride"), [(16, 8), (4, 2), (5, 3)])
@pytest.mark.parametrize("given", ["output_padding", "output_size", "input_shape"])
def test_folds_of_sizes_in_several_ranges(taps, stride, given, searches):
    """Transposed convolutions and input gradients, whose products are folded."""
    rng = np.random.default_rng(11)
    w = integers(rng, (24, 12, taps))
    pads, bias = [(1, 1)], integers(rng, 12)
    for number, pixels in enumerate((40, 50, 63, 33, 100, 77, 9, 14, 41, 60)):
        x = integers(rng, (1 + number % 2, 24, pixels))
        added = number % stride if given == "output_size" else stride - 1
        size = (pixels - 1) * stride - 2 + taps + added
        shape = (len(x), 12, size)
        window = {"stride": (stride,), "pads": pads, "dilation": (1,)}
        expected = reference.input_grad(x, w, shape, **window)
        options = {"stride": stride, "padding": 1}
        if given == "input_shape":
            y = ic.conv1d_input_grad(x, w, shape, **options)
        else:
            options[given] = added if given == "output_padding" else size
            y = ic.conv_transpose1d(x, w, bias, **options)
            expected = expected + bias[:, None]
        np.testing.assert_allclose(y, expected, atol=1e-2)
    del searches[:]
    for pixels in (35, 44, 52):
        x = integers(rng, (1, 24, pixels))
        ic.conv_transpose1d(x, w, stride=stride, padding=1, output_padding=stride - 1)
    assert len(searches) <= 3


@pytest.mark.parametrize("groups", [1, 4, 24])
@pytest.mark.parametrize("given", ["output_padding", "output_size", "input_shape"])
@pytest.mark.parametrize("last", [False, True])
def test_near_sizes_of_gradients_need_no_plan(groups, given, last, monkeypatch):
    """Transposed convolutions and input gradients by phases, or in one pass if depthwise."""
    rng, plans = np.random.default_rng(13), []
    make = dispatch._make_cpu_plan
    monkeypatch.setattr(
        dispatch, "_make_cpu_plan", lambda *task: plans.append(task[1]) or make(*task)
    )
    w, bias = integers(rng, (24, 24 // groups, 3, 3)), integers(rng, 24)
    options = {"stride": 2, "padding": 1, "groups": groups, "layout": "NHWC" if last else "NCHW"}
    first = (lambda x: np.moveaxis(x, 1, -1)) if last else np.asarray
    for number, (p, q) in enumerate(((20, 24), (31, 17), (17, 31), (22, 22), (40, 20), (33, 30))):
        x, added = integers(rng, (1 + number % 2, 24, p, q)), number % 2
        size = 2 * p - 1 + added, 2 * q - 1 + added
        shape = len(x), 24, *size
        expected = reference.input_grad(x, w, shape, groups=groups, **WINDOW)
        if given == "input_shape":
            whole = first(np.empty(shape)).shape
            y = ic.conv2d_input_grad(np.ascontiguousarray(first(x)), w, whole, **options)
        else:
            own = {given: added if given == "output_padding" else size}
            y = ic.conv_transpose2d(np.ascontiguousarray(first(x)), w, bias, **options, **own)
            expected = expected + bias[:, None, None]
        np.testing.assert_allclose(y, first(expected), atol=1e-3)
    assert len(set(plans)) == 4  # of two batches and two ranges of heights


@pytest.mark.parametrize("last", [False, True])
def test_near_sizes_of_complex_numbers_and_of_borders_need_no_plan(last, monkeypatch):
    """The parts of a candidate have near sizes as it has."""
    rng, plans = np.random.default_rng(17), []
    make = dispatch._make_cpu_plan
    monkeypatch.setattr(
        dispatch, "_make_cpu_plan", lambda *task: plans.append(task[1]) or make(*task)
    )
    options = {"padding": 1, "layout": "NHWC" if last else "NCHW"}
    first = (lambda x: np.moveaxis(x, 1, -1)) if last else np.asarray
    w = integers(rng, (6, 5, 3, 3))
    both = w + 1j * integers(rng, w.shape)
    for p, q in ((20, 24), (31, 17), (17, 31), (22, 22), (30, 29)):
        x = integers(rng, (2, 5, p, q)) + 1j * integers(rng, (2, 5, p, q))
        y = ic.conv2d(np.ascontiguousarray(first(x)), both, **options)
        sums = functools.partial(reference.conv, stride=(1, 1), pads=[(1, 1)] * 2, dilation=(1, 1))
        expected = sums(x.real, w) - sums(x.imag, both.imag)
        expected = expected + 1j * (sums(x.real, both.imag) + sums(x.imag, w))
        np.testing.assert_array_equal(y, first(expected))
        given = {"padding_mode": "reflect", **options}
        dy = integers(rng, (2, 6, p, q))
        whole = first(np.empty((2, 5, p, q))).shape
        dx = ic.conv2d_input_grad(np.ascontiguousarray(first(dy)), w, whole, **given)
        padded = np.pad(np.arange(p * q).reshape(p, q), 1, mode="reflect")
        wide = reference.input_grad(
            dy, w, (2, 5, p + 2, q + 2), stride=(1, 1), pads=[(0, 0)] * 2, dilation=(1, 1)
        )
        folded = np.zeros((2, 5, p * q))
        np.add.at(folded, (slice(None), slice(None), padded.ravel()), wide.reshape(2, 5, -1))
        np.testing.assert_allclose(dx, first(folded.reshape(2, 5, p, q)), atol=1e-3)
    assert len(set(plans)) == 2


@pytest.mark.parametrize("taps", [(3, 3), (1, 3), (3, 1)])
def test_an_axis_of_one_pixel_serves_no_near_sizes_of_gradients(taps):
    """A phase has a single tap there too, and then its axes are in another order."""
    for size, other in (((9, 1), (9, 13)), ((1, 9), (13, 9))):
        plan = ic.plan_conv_transpose2d((1, 24, *size), (24, 24, *taps), stride=2)
        found = kinds.size_class_of(plan.engine)
        assert found is None or found.sized((1, 24, *other)) is None


def test_plans_are_searched_in_full_and_say_where_a_choice_comes_from():
    calls = list(sizes_of("3x3", 3))
    for call, _ in calls:
        call()
    plan = ic.plan_conv2d((3, 16, 20, 22), (16, 16, 3, 3), padding=1)
    assert len(plan.engine.choice.candidates) > 1
    assert "taken over" not in plan.explain()
    x = calls[0][0].args[0]
    ranges = (*cache.ENGINES._young.values(), *cache.ENGINES._old.values())
    first = next(kept for kept in ranges if kept.engine.x_shape == x.shape)
    text = first.sized((3, 16, 20, 22)).explain()
    assert f"taken over from the choice for a near size, 3 x {x.shape[2]}x{x.shape[3]}" in text


def test_a_size_that_was_measured_has_its_own_choice(searches, tmp_path, monkeypatch):
    x, w = np.ones((1, 16, 24, 24), np.float32), np.ones((16, 16, 3, 3), np.float32)
    monkeypatch.setattr(tuning_cache, "store", lambda: Store(tmp_path))
    monkeypatch.setattr(tuning_cache, "_MEMORY", {})
    ic.conv2d(x, w)
    ic.plan_conv2d((1, 16, 25, 25), w.shape).tune()
    before = len(searches)
    ic.conv2d(np.ones((1, 16, 25, 25), np.float32), w)
    assert len(searches) > before
    other = np.ones((20, 16, 3, 3), np.float32)
    ic.conv2d(x, other)
    before = len(searches)
    ic.conv2d(np.ones((1, 16, 27, 25), np.float32), other)  # sizes of other kinds do not search
    assert len(searches) == before


def test_another_thread_prepares_what_other_sizes_take(monkeypatch):
    """After that no size of the kind, in this range or another one, compiles in its call."""
    for call, expected in sizes_of("signal", 2):
        np.testing.assert_allclose(call(), expected, atol=1e-3)
    while preparation._later:
        time.sleep(0.01)
    found = []
    address = code.Code.address

    def counted(wanted, *compiler):
        if (wanted, *(compiler or (code.TRANSLATOR,))) not in code._addresses:
            found.append((threading.current_thread(), wanted))
        return address(wanted, *compiler)

    monkeypatch.setattr(code.Code, "address", counted)
    for seed, extents in enumerate(((64, 127), (16, 60), (300, 1500))):
        for call, expected in sizes_of("signal", 20, seed=seed, extents=extents):
            np.testing.assert_allclose(call(), expected, atol=1e-3)
    assert [w for thread, w in found if thread is threading.main_thread()] == []
    while preparation._later:
        time.sleep(0.01)


def test_a_call_takes_spare_tiles_while_another_thread_compiles(monkeypatch):
    calls = list(sizes_of("3x3", 3))
    for call, _ in calls:
        call.keywords["algorithm"] = "winograd_f2"
    calls[0][0]()

    def missing(c, formats):
        return int(c != kinds.spare(c, formats))

    with monkeypatch.context() as waiting:
        waiting.setattr(kinds, "prepares_later", lambda: True)
        waiting.setattr(kinds, "prepare_later", lambda function: None)
        waiting.setattr(kinds, "missing_parts", missing)
        taken = []
        waiting.setattr(dispatch, "keep_size", lambda *given: taken.append(given[-1]))
        for call, expected in calls[1:]:
            np.testing.assert_allclose(call(), expected, atol=1e-3)
        assert {engine.best.geometry.tile_m for engine in taken} == {4}
        assert all(map(kinds.is_temporary, taken))


def test_a_size_whose_own_tiles_are_the_spare_ones_is_kept(monkeypatch):
    """One row of each plane has register tiles of one row."""
    kept = []
    monkeypatch.setattr(dispatch, "keep_size", lambda *given: kept.append(given[-1]))
    for columns in (30, 33, 35):
        x, w = np.ones((1, 16, 1, columns), np.float32), np.ones((16, 1, 3, 3), np.float32)
        ic.conv2d(x, w, groups=16, padding=1, activation="silu")
    assert kept and not any(map(kinds.is_temporary, kept))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("precision", ["standard", "strict"])
def test_spare_tiles_compute_every_size(name, last, precision):
    """Under precision "strict" with the bits of the tiles that they stand in for."""
    found = set()
    for call, expected in sizes_of(
        name, 5, last, seed=19, extents=(2, 40 if name != "volume" else 9)
    ):
        x, w = call.args
        options = {**call.keywords, "precision": precision}
        make = getattr(ic, f"plan_{KINDS[name][0]}")
        plan = make(x.shape, w.shape, **options)
        real = np.random.default_rng(5).standard_normal(x.shape, np.float32)
        for c in plan.engine.choice.candidates:
            other = c if c.parts else kinds.spare(c, plan.engine.formats)
            if other == c:
                continue
            found.add(c.method)
            choice = plan.engine.choice
            one, few = (replace(choice, candidates=(each,)) for each in (c, other))
            own, spares = (ic.Plan(replace(plan.engine, choice=each)) for each in (one, few))
            np.testing.assert_array_equal(spares(x, w), expected)
            if precision == "strict":
                np.testing.assert_array_equal(spares(real, w), own(real, w))
    assert found


@pytest.mark.parametrize("start", ["_thread.start_new_thread", "threading.Thread.start"])
def test_what_waits_is_prepared_when_a_thread_can_be_started_again(monkeypatch, start):
    def refused(*given):
        raise RuntimeError("can't start new thread")

    done = []
    while preparation._later:  # of tests before
        time.sleep(0.01)
    with monkeypatch.context() as tight:
        tight.setattr(start, refused)
        preparation.prepare_later(lambda: done.append("first") or ())
        while preparation._later:
            time.sleep(0.01)
    assert not done
    preparation.prepare_later(lambda: done.append("second") or ())
    while preparation._later:
        time.sleep(0.01)
    assert done == ["first", "second"]


def test_sizes_that_flow_by_leave_kinds_and_fixed_sizes(monkeypatch, searches):
    monkeypatch.setattr(cache, "CALLS_KEPT", 8)
    w = np.ones((4, 3, 3, 3), np.float32)
    fixed = np.ones((1, 3, 40, 40), np.float32)
    for width in range(32, 62):
        ic.conv2d(np.ones((1, 3, 40, width), np.float32), w)
        ic.conv2d(fixed, w)
        assert len(cache.CALLS) <= 8
    assert len(searches) == 1


def test_the_call_of_a_new_size_is_kept_when_the_size_comes_again():
    (first, _), (call, expected) = sizes_of("3x3", 2)
    first()
    kept = []
    for _ in range(3):
        np.testing.assert_allclose(call(), expected, atol=1e-3)
        kept.append(len(cache.CALLS))
    assert kept == [1, 2, 2]


def test_a_call_that_is_not_kept_has_its_engine_kept(monkeypatch):
    """One that converts its result takes more than one launch."""
    sized, x = [], np.ones((1, 3, 20, 20), np.float32)
    w = np.ones((4, 3, 3, 3), np.float32)
    of_range = kinds.SizeClass.sized
    monkeypatch.setattr(
        kinds.SizeClass, "sized", lambda *given: sized.append(given) or of_range(*given)
    )
    for _ in range(5):
        assert ic.conv2d(x, w, out_dtype="float64").dtype == np.float64
        assert ic.conv2d(x[..., 1:], w, out_dtype="float64").dtype == np.float64
    while preparation._later:
        time.sleep(0.01)
    here = [shape for _, shape, *_ in sized if shape == (1, 3, 20, 19)]
    assert 1 <= len(here) <= 4  # by one call, and by the thread that prepares


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_kernels_of_a_near_size_are_those_that_it_would_have_alone(name, last):
    for call, _ in sizes_of(name, 8, last):
        call()
        while preparation._later:  # until then engines are temporary
            time.sleep(0.01)
    engines = list(cache.SIZES._young.values())
    assert engines
    for engine in engines:
        c, formats = engine.choice.best, engine.formats
        own, alone = kernel_method.operator(c, formats), kernel_method._new_operator(c, formats)
        slots = np.flatnonzero(alone.table)
        np.testing.assert_array_equal(own.table[slots], alone.table[slots])
        assert own.missing_parts(c.layout) == 0 and own.resized(c.layout).layout == c.layout
        assert own.items == alone.items and own.constant.keys() == alone.constant.keys()


@pytest.mark.parametrize("name", ["3x3", "1x1", "depthwise"])
def test_a_new_size_takes_few_calls_of_python(name, monkeypatch):
    while preparation._later:  # for tests before this one: calls then look for what is loaded
        time.sleep(0.01)
    monkeypatch.setattr(kinds, "prepare_later", lambda function: [*function()])
    counts = []
    for call, _ in sizes_of(name, 8):
        entered = collections.Counter()
        sys.setprofile(lambda frame, event, argument, seen=entered: seen.update([event]))
        try:
            call()
        finally:
            sys.setprofile(None)
        counts.append(entered["call"])
    assert 100 < min(counts) <= MOST_CALLS


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_packed_filters_of_near_sizes_have_the_order_that_each_would_have(name, last, monkeypatch):
    monkeypatch.setattr(kinds, "prepare_later", lambda function: None)
    for call, _ in sizes_of(name, 6, last):
        call()
    found = [engine.choice.best for engine in cache.SIZES._young.values()]
    if name in ("3x3", "1x1"):  # shared, since nobody has asked for it
        assert any("packed" in vars(c) for c in found)
    for c in found:
        assert c.packed == c.method.packed(c)


def test_another_size_shares_what_depends_on_none():
    """Of all that a problem keeps, in all its orders of axes."""
    kept = {name for name, value in vars(Problem).items() if isinstance(value, cached_property)}
    assert kept == {*CACHED}
    for layout, batched in (("NCHW", True), ("NHWC", True), ("NCHW", False)):
        case = Case(N=2 if batched else 1, C=3, K=4, size=(9, 8), layout=layout)
        first = replace(case.problem, batched=batched)
        for name in CACHED:
            getattr(first, name)
        fields = {"N": 5 if batched else 1, "size": (7, 30), "pad_lo": (0, 2), "pad_hi": (1, 0)}
        found, new = first.changed(**fields), replace(first, **fields)
        for name in CACHED:
            assert getattr(found, name) == getattr(new, name), name
        for window in ({"kernel": (2, 2)}, {"C": 6}, {"stride": (2, 1)}, {"dtype": "float64"}):
            for name in CACHED:
                other = first.changed(**window)
                assert getattr(other, name) == getattr(replace(first, **window), name), name


def test_windows_of_as_many_words_share_no_loads():
    """Windows of three and of four pixels are two pairs of bfloat16, and any stride is one."""
    rng = np.random.default_rng(0)
    x = integers(rng, (1, 9, 40, 1))
    calls = []
    for taps, stride in ((4, 1), (3, 1), (4, 2), (3, 2)):
        w = integers(rng, (4, 1, 3, taps))
        given = {"stride": (1, stride), "layout": "NHWC"}
        problem = ic.plan_conv2d(x.shape, w.shape, **given).problem
        own = x.astype(ml_dtypes.bfloat16), w.astype(ml_dtypes.bfloat16)
        call = functools.partial(ic.conv2d, *own, **given, out_dtype="float32")
        calls.append((call, convolved(problem, x, w)))
    for call, expected in calls * 2:
        np.testing.assert_array_equal(call(), expected)


@pytest.mark.parametrize("padding", ["same", "valid", "full", 1, ((0, 2), (1, 0))])
def test_padding_of_every_kind(padding):
    rng, w = np.random.default_rng(1), integers(np.random.default_rng(2), (5, 3, 4, 3))
    for size in rng.integers(16, 32, (5, 2)):
        x = integers(rng, (1, 3, *size))
        for stride in (1, 2):
            options = {"stride": stride, "padding": padding}
            problem = Problem.parse(x.shape, w.shape, **options)
            y = ic.conv2d(x, w, **options)
            np.testing.assert_allclose(y, convolved(problem, x, w), atol=1e-3)


def test_a_size_that_is_wrong_is_refused_as_ever():
    w = np.ones((4, 3, 5, 5), np.float32)
    for size in (20, 21, 22):
        ic.conv2d(np.ones((1, 3, size, size), np.float32), w)
    with pytest.raises(ic.ShapeError, match="C=4"):
        ic.conv2d(np.ones((1, 4, 20, 20), np.float32), w)
    ic.conv2d(np.ones((1, 3, 6, 6), np.float32), w)
    with pytest.raises(ic.ShapeError, match="no pixels"):
        ic.conv2d(np.ones((1, 3, 4, 7), np.float32), w)
