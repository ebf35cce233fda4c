"""Whole networks of a comparison, on the CPU with planted times: ways that are right, wrong, raise,
or have no time, and how the report tells of them.
"""

import itertools
import logging
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

from implicit_conv.gpu.cuda import cubin  # noqa: E402
from implicit_conv.gpu.cuda.arch import gpu_arch  # noqa: E402
from implicit_conv.kernels import sources  # noqa: E402
from implicit_conv.torch.cuda import Operands, Operation, gradients, plan_of  # noqa: E402
from implicit_conv.torch.steps import Window  # noqa: E402
from perf import asked, pack  # noqa: E402
from perf.bringup import compare, networks  # noqa: E402
from perf.bringup.kit import Kit, read  # noqa: E402
from perf.bringup.networks import EAGER, ENABLED, GRAPHED, TINY, Way, Work  # noqa: E402
from perf.networks import all_resnet50, resnet50  # noqa: E402

PREDICTS = Work("2 images", 2, 0.03)
TRAINS = Work("a training step", 2, 0.7, networks.train, (EAGER, ENABLED))
EAGERLY = Way(lambda model: model)


def kit_of(*titles):
    kit = Kit({"target": "sm_90a", "kernel sources": sources.kernels_hash()})
    for title in titles:
        kit.provide(title, b"image", "entry")
    return kit


@pytest.fixture(autouse=True)
def alone():
    """Threads of torch would wait for cores that other tests have."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def ways(monkeypatch):
    """Ways that need no compiler; those of tests are planted among them."""
    made = dict.fromkeys(networks.WAYS, EAGERLY)
    monkeypatch.setattr(networks, "WAYS", made)
    return made


def measured(*works, network=TINY, in_time=lambda: True):
    def seconds(call):
        call()
        return 0.25

    return list(networks.rows(network, works, "cpu", seconds, in_time))


def test_ways_through_the_door_are_timed():
    """On the CPU, where torch's modules are compiled; only a GPU has convolutions to count."""
    network = networks.Network("one block", ((16, 8, 1, 1),), 10)
    work = PREDICTS._replace(ways=(EAGER, ENABLED, GRAPHED))
    (row,) = measured(work, network=network)
    assert_timed(row, work)
    assert (row["name"], row["operators"]) == ("one block, 2 images", 5)
    assert list(row["failures"]) == [GRAPHED]
    assert "its inputs are on ['cpu']" in row["failures"][GRAPHED]


def test_training_steps_are_timed(ways):
    (row,) = measured(TRAINS)
    assert_timed(row, TRAINS)
    assert (row["failures"], row["operators"]) == ({}, 12 + 11 + 12)


def assert_timed(row, work):
    assert list(row["errors"]) == list(work.ways)
    assert row["seconds"] == {way: [0.25] * networks.ROUNDS for way in work.ways}
    assert all(0 < error <= work.bound for error in row["errors"].values())
    assert set(row["ours"].values()) == {0}


def test_a_way_that_is_wrong_is_named_and_not_timed(ways):
    ways["backend"] = Way(lambda model: lambda x: 1.04 * model(x))
    (row,) = measured(PREDICTS)
    assert list(row["failures"]) == ["backend"]
    assert row["failures"]["backend"].startswith("WrongResultError: 0.0")
    assert row["seconds"].keys() == {EAGER, ENABLED, GRAPHED}


@pytest.mark.parametrize("call", range(networks.CHECKED))
def test_each_of_the_first_calls_is_checked(ways, call):
    def convert(model):
        numbers = itertools.count()
        return lambda x: model(x) * (float("nan") if next(numbers) == call else 1)

    ways["backend"] = Way(convert)
    (row,) = measured(PREDICTS)
    assert row["failures"] == {
        "backend": "WrongResultError: nan apart from float32, more than 0.03"
    }


def test_gradients_that_are_wrong_are_named(ways, monkeypatch):
    """One filter's gradient, which torch's optimizer would hardly show."""

    def convert(model):
        model[4].conv.weight.register_hook(torch.zeros_like)
        return model

    ways[ENABLED] = Way(convert)
    (row,) = measured(TRAINS)
    assert row["failures"] == {ENABLED: "WrongResultError: 1 apart from float32, more than 0.7"}


@pytest.mark.parametrize("last", [0, 1, networks.CHECKED, networks.CHECKED + 2])
def test_a_way_that_raises_is_named(ways, last):
    """While it is converted, checked or timed."""

    def convert(model):
        if not last:
            raise ImportError("no compiler\nat all")
        numbers = itertools.count(1)

        def run(x):
            if next(numbers) > last:
                raise RuntimeError("no memory")
            return model(x)

        return run

    ways["backend"] = Way(convert)
    (row,) = measured(PREDICTS)
    said = "RuntimeError: no memory" if last else "ImportError: no compiler"
    assert row["failures"] == {"backend": said}
    others = {EAGER, ENABLED, GRAPHED}
    assert {way for way, them in row["seconds"].items() if len(them) == networks.ROUNDS} == others
    assert "backend" not in row["seconds"]


def test_what_the_door_warns_of_is_named(ways):
    def convert(model):
        logging.getLogger("implicit_conv").warning("torch's own kernel runs: %s", "no driver")
        return model

    ways[ENABLED] = Way(convert)
    (row,) = measured(PREDICTS)
    assert row["failures"] == {ENABLED: "torch's own kernel runs: no driver"}
    assert row["seconds"].keys() == {*PREDICTS.ways}


def test_ways_that_there_is_no_time_for_are_named(ways):
    answers = iter([True, True, *[False] * 4])
    first, second = measured(PREDICTS, TRAINS, in_time=lambda: next(answers))
    assert first["seconds"].keys() == {EAGER, ENABLED}
    assert first["failures"] == dict.fromkeys(["backend", GRAPHED], networks.LATE)
    assert (second["seconds"], list(second["failures"])) == ({}, [EAGER, ENABLED])


def test_a_card_without_memory_for_the_reference_is_named(ways, monkeypatch):
    def make(model, x):
        raise torch.OutOfMemoryError("no memory")

    (row,) = measured(PREDICTS._replace(make=make))
    assert row["failures"] == {"float32": "OutOfMemoryError: no memory"}


def test_the_report_has_a_table_of_networks(ways, tmp_path, monkeypatch):
    """By `Torch` itself, whose device and clock are planted."""
    seconds = itertools.count(1)
    monkeypatch.setattr(networks, "RESNET50", TINY)
    monkeypatch.setattr(networks, "WORKS", (PREDICTS,))
    monkeypatch.setattr(networks, "event_seconds", lambda call: (call(), 0.001)[1])
    monkeypatch.setattr(cubin, "PROVIDED", {})
    ways["backend"] = Way(lambda model: lambda x: 2 * model(x))
    card = object.__new__(compare.Torch)
    card.device = "cpu"
    card.gpu = SimpleNamespace(kit=kit_of("a kernel"), facts=lambda: ["a card"])
    report = compare.compared(card.gpu.kit, card, tmp_path / "a.json", lambda: next(seconds))
    assert compare.Report.read(tmp_path / "a.json") == report
    assert list(report.failures) == ["tiny, 2 images, backend"]
    lines = report.lines()
    at = lines.index("tiny, 2 images:")
    assert lines[at + 1 : at + 4] == [
        f"  {way:20}     1.000 ms   1.00    0 ours,  12 torch's"
        for way in (EAGER, ENABLED, GRAPHED)
    ]
    assert lines[-1].startswith("FAILED: tiny, 2 images, backend: WrongResultError")


def test_a_kit_of_other_sources_or_without_kernels_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cubin, "PROVIDED", {})
    kit = kit_of()
    for why in ("no kernels for networks", "are of sources older"):
        card = SimpleNamespace(gpu=SimpleNamespace(kit=kit, facts=list))
        card.networks = lambda in_time, card=card: compare.Torch.networks(card, in_time)
        report = compare.compared(kit, card, tmp_path / "a.json")
        assert why in report.failures["networks"] and not cubin.PROVIDED
        kit.about["kernel sources"] = "older"
        kit.provide("a kernel", b"", "")


def test_the_engine_loads_what_a_kit_provides(tmp_path, monkeypatch):
    """Without a compiler, after the kit was written and read."""
    monkeypatch.setattr(cubin, "PROVIDED", {})
    kit_of("a kernel").save(tmp_path / "a.kit")
    networks.provide(read(tmp_path / "a.kit"))
    assert cubin.cached("a kernel", None, (9, 0, "a"), 384) == (b"image", "entry")


def test_a_sample_is_of_several_calls(monkeypatch):
    clock = [0.0]

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock[0]

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return other.at - self.at

    monkeypatch.setattr(torch.cuda, "Event", Event)
    calls = []
    for milliseconds, expected in ((0.5, networks.CALLS), (30, 3), (500, 1)):

        def call(milliseconds=milliseconds):
            calls.append(1)
            clock[0] += milliseconds

        calls.clear()
        assert networks.event_seconds(call) == pytest.approx(milliseconds / 1e3)
        assert len(calls) == 1 + expected


def test_the_network_has_the_layers_of_its_paper():
    model = networks.RESNET50.model("meta")
    found = [each for each in model.modules() if isinstance(each, torch.nn.Conv2d)]
    layers = [case for _, case in all_resnet50()]
    assert sorted(
        (each.in_channels, each.out_channels, each.kernel_size, each.stride) for each in found
    ) == sorted((case.C, case.K, case.kernel, case.stride) for case in layers)


@pytest.mark.parametrize("work", networks.WORKS[:3])
def test_the_kernels_of_a_kit_are_those_of_an_h200_too(work):
    """Its memory is faster than that of the card that stands for sm_90a."""
    arch = gpu_arch("sm_90a")
    planned, faster = (
        {v for _, case in resnet50() for v in variants(work, case, card)}
        for card in (arch, replace(arch, memory=4.9e12))
    )
    assert faster and faster <= planned


def variants(work, case, arch):
    """The kernels that are planned for a layer, and in training for its gradients."""
    shapes = (work.images, case.C, *case.size), (case.K, case.C, *case.kernel)
    shapes += ((work.images, case.K, *case.output),)
    x, w, y = (torch.empty(shape, dtype=networks.DTYPE, device="meta") for shape in shapes)
    pads = [low for low, _ in case.padding]
    window = Window.of((case.stride, pads, case.dilation, False, (0, 0), case.groups))
    every = [(Operands(x, w), partial(Operation.of, window))]
    every += gradients(window, y, x, w) if work is networks.WORKS[2] else ()
    for given, operation in every:
        choice = plan_of(given, operation(), arch).engine.choice
        parts = [part.choice for part in getattr(choice, "parts", ())] or [choice]
        yield from (repr(part.variant) for part in parts)
        yield from (repr(v) for v, *_ in getattr(choice, "launches", ()))


def test_a_small_kit_has_the_kernels_of_a_small_network(monkeypatch):
    """Under the titles by which the engine asks for them."""
    asked_for = []

    def cached(title, make, cc, threads, resident=1):
        asked_for.append(title)
        return title.encode(), "entry"

    monkeypatch.setattr(cubin, "cached", cached)
    arch, kit = gpu_arch("sm_90a"), Kit({"target": "sm_90a"})
    cubin.cubin.cache_clear()
    pack._pack_door(kit, arch, "tiny")
    cubin.cubin.cache_clear()
    assert list(kit.door) == asked_for and len(asked_for) > 12
    for title, (name, entry) in kit.door.items():
        assert (kit.files[name], entry) == (title.encode(), "entry")


@pytest.mark.parametrize("bias", [True, False])
def test_a_kit_has_the_kernels_of_biases(bias):
    """The gradient of a bias comes with that of the filter."""
    model = torch.nn.Conv2d(16, 24, 3, bias=bias).to(networks.DTYPE)
    x = torch.empty(2, 16, 9, 8, dtype=networks.DTYPE)
    network = SimpleNamespace(model=lambda _: model, images=lambda *_: x)
    found = asked.kernels(gpu_arch("sm_90a"), network, [Work("some", 2, 0.7, networks.train)])
    sums = [title for title in found if title.startswith(("WgradVariant", "SplitSum"))]
    assert len(sums) == 2 and all(f"biased={bias}" in title for title in sums)
