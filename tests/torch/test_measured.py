"""The choice between our kernel and torch's by measured times: what runs, and what is kept."""

import time

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

import implicit_conv.torch as door  # noqa: E402
from implicit_conv.cpu.machine import times as times_on_disk  # noqa: E402
from implicit_conv.process import cache  # noqa: E402
from implicit_conv.process.disk import Store  # noqa: E402
from implicit_conv.torch import first_calls, measured  # noqa: E402
from implicit_conv.torch.measured import SIZES, Times  # noqa: E402

F = torch.nn.functional
W = torch.randn(6, 4, 3, 3)
ONE = torch.ones(1)
OURS, TORCHS = Times(1e-3, 2e-3), Times(2e-3, 1e-3)


@pytest.fixture(autouse=True)
def choices(ours, monkeypatch, tmp_path):
    """All calls are measured, and what was measured before is unknown."""
    store, found = Store(tmp_path), measured.Choices()
    monkeypatch.setattr(times_on_disk, "store", lambda: store)
    monkeypatch.setattr(first_calls, "CHOICES", found)
    monkeypatch.setattr(first_calls, "worth_measuring", lambda plan: True)
    cache.clear()
    yield found
    cache.clear()


@pytest.fixture
def measures(monkeypatch):
    """Have calls measured as a function says; returns the calls that were."""
    calls = []

    def use(result):
        def measure(self, own, ours, theirs, grouped):
            calls.append((ours(), theirs()))
            return result(len(calls)), True

        monkeypatch.setattr(measured.Choices, "_measure", measure)
        return calls

    return use


def convolve(size=8):
    return F.conv2d(torch.ones(1, 4, size, size), W)


@pytest.mark.parametrize(("times", "runs"), [(OURS, 1), (TORCHS, 0)])
def test_the_faster_one_runs(times, runs, ours, measures):
    expected, calls = convolve(), measures(lambda number: times)
    with door.enable():
        first = convolve()
        ours.clear()
        second = convolve()
    assert len(ours) == runs and len(calls) == 1
    assert torch.equal(first, second) and torch.allclose(first, expected, atol=1e-5)
    assert torch.equal(second, expected) or runs


@pytest.mark.parametrize("slower", [(), (0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_each_gradient_has_its_own_choice(slower, transposed, ours, measures):
    convolution = F.conv_transpose2d if transposed else F.conv2d
    x = torch.randn(1, 6 if transposed else 4, 8, 8, requires_grad=True)
    w, bias = W.clone().requires_grad_(), torch.randn(4 if transposed else 6, requires_grad=True)

    def gradients():
        y = convolution(x, w, bias)
        return torch.autograd.grad(y.square().sum(), (x, w, bias))

    expected = gradients()
    measures(lambda number: TORCHS if number - 2 in slower else OURS)  # the forward call first
    with door.enable():
        for _ in range(2):
            ours.clear()
            found = gradients()
    assert len(ours) == 3 - len(slower)
    for own, other in zip(found, expected, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-3)


def test_later_processes_begin_where_the_last_ended(ours, measures, monkeypatch):
    calls = measures(lambda number: TORCHS)
    with door.enable():
        convolve()
        cache.clear()
        monkeypatch.setattr(first_calls, "CHOICES", measured.Choices())  # as a new process has
        ours.clear()
        convolve()
    assert len(calls) == 1 and not ours


def test_another_version_of_torch_measures_anew(measures, monkeypatch):
    calls = measures(lambda number: TORCHS)
    with door.enable():
        convolve()
        cache.clear()
        monkeypatch.setattr(torch, "__version__", "2.99.0")
        monkeypatch.setattr(first_calls, "CHOICES", measured.Choices())
        convolve()
    assert len(calls) == 2


def test_sizes_of_a_kind_follow_those_that_were_measured(ours, measures):
    """Ours is faster by the sum of the times, though not for most sizes."""
    calls = measures(lambda number: Times(1.0, 9.0) if number == 1 else TORCHS)
    with door.enable():
        for size in range(8, 8 + SIZES):
            convolve(size)
        ours.clear()
        for size in range(20, 30):
            convolve(size)
    assert len(calls) == SIZES and len(ours) == 10


def test_kinds_are_kept_apart(measures):
    """Strides of x, dtypes, the bias and the operator make other kinds."""
    calls, x = measures(lambda number: OURS), torch.ones(1, 4, 8, 8)
    with door.enable():
        F.conv2d(x, W)
        F.conv2d(x.to(memory_format=torch.channels_last), W)
        F.conv2d(x.double(), W.double())
        F.conv2d(x, W, torch.ones(6))
        F.conv2d(x, W, padding=1)
        F.conv_transpose2d(torch.ones(1, 6, 8, 8), W)
    assert len(calls) == 6


@pytest.mark.parametrize("way", ["always", "strict", "deterministic"])
def test_nothing_is_measured_where_bits_count(way, ours, measures):
    calls = measures(lambda number: TORCHS)
    options = {"always": {"choose": "always"}, "strict": {"precision": "strict"}}.get(way, {})
    torch.use_deterministic_algorithms(way == "deterministic")
    try:
        with door.enable(**options):
            convolve()
    finally:
        torch.use_deterministic_algorithms(False)
    assert not calls and len(ours) == 1
    if way == "deterministic":  # which is no property of the kept call
        with door.enable():
            convolve()
        assert len(calls) == 1


def test_a_choice_that_is_unknown():
    with pytest.raises(ValueError, match="choose 'fastest' is none of measured, always"):
        door.enable(choose="fastest")


def test_unaligned_tensors_choose_for_no_others(ours, measures):
    calls = measures(lambda number: OURS)
    data = torch.frombuffer(bytearray(256 * 4 + 1), dtype=torch.float32, offset=1)
    with door.enable():
        F.conv2d(data.reshape(1, 4, 8, 8), W)
        assert not calls and not ours
        convolve()
    assert len(calls) == 1


def test_what_is_measured(choices, tmp_path):
    """The faster one wins, a clear race is short, and torch's error leaves ours."""
    counts = [0, 0]

    def call(place, seconds):
        def run():
            counts[place] += 1
            time.sleep(seconds)
            return torch.ones(2)

        return run

    found = choices.times("kind", "size", call(0, 0.001), call(1, 0.01))
    assert found.ours < 0.009 < found.theirs and counts == [3, 3]  # once before
    assert len(list(tmp_path.iterdir())) == 1
    assert choices.times("kind", "size", None, None) == found

    def error():
        raise RuntimeError("no kernel")

    assert measured.ours_is_faster(choices.times("kind", "other", call(0, 0), error))


@pytest.mark.parametrize("as_gradient", [False, True])
def test_results_that_differ_leave_ours(as_gradient, choices, caplog):
    """However slow: one of both is wrong, and torch's known faults are such."""

    def ours():
        time.sleep(0.01)
        return torch.ones(4)

    for number, (theirs, runs) in enumerate(
        [(torch.full((4,), 1.001), False), (torch.tensor([1.0, 1.0, 1.0, -1.0]), True)]
    ):
        other = (None, theirs, None) if as_gradient else theirs
        for grouped in (False, True):
            caplog.clear()
            size = number, grouped
            found = choices.times(
                ("kind", grouped), size, ours, lambda other=other: other, grouped=grouped
            )
            assert measured.ours_is_faster(found) == runs
            assert ("differs from ours" in caplog.text) == runs
            assert ("grouped filters" in caplog.text) == (runs and grouped)


def test_infinities_do_not_tell_who_is_right(choices):
    infinite = torch.tensor([torch.inf, 1.0])
    found = choices.times("kind", 1, lambda: infinite.sum() * infinite, lambda: infinite)
    assert found.theirs < 1


def test_a_close_race_is_bounded_and_an_open_one_is_not_kept_on_disk(
    choices, monkeypatch, tmp_path
):
    seconds = iter([1.0, 1.1, 1.1, 1.0] * 10)
    monkeypatch.setattr(measured, "_seconds", lambda call: (call(), next(seconds))[1])
    calls = []
    found = choices.times("kind", "size", lambda: calls.append(1) or ONE, lambda: ONE)
    assert len(calls) == 1 + measured.ROUNDS and found == (1.0, 1.0)
    assert not list(tmp_path.iterdir())
    assert choices.times("kind", "size", None, None) == found  # in this process


@pytest.mark.parametrize(("theirs", "pairs"), [(0.0, 2), (0.01, measured.LEAST)])
def test_a_long_race_ends_after_a_few_pairs(theirs, pairs, choices, monkeypatch):
    monkeypatch.setattr(measured, "SECONDS", 0.001)
    calls = []
    ours = lambda: calls.append(1) or ONE  # noqa: E731
    seconds = iter([0.01, theirs] * 9)
    monkeypatch.setattr(measured, "_seconds", lambda call: (call(), next(seconds) + 1e-9)[1])
    monkeypatch.setattr(time, "perf_counter", iter(range(99)).__next__)
    choices.times("kind", "size", ours, lambda: ONE)
    assert len(calls) == 1 + pairs


def test_a_forked_child_has_a_lock_of_its_own(choices):
    before = choices._lock
    choices.renew_lock()
    assert choices._lock is not before
