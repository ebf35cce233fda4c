"""Planted bugs: each shows as a wrong result or as a report that names stage and phase."""

import re
import types
from dataclasses import replace

import numpy as np
import pytest

from implicit_conv.gpu.families import FAMILIES
from implicit_conv.kernels import schedule
from implicit_conv.kernels.gpu import consumer, fprop, mma, producer, ring, warp
from implicit_conv.kernels.sim.errors import SimulationError
from implicit_conv.testing import Case, to_nchw
from implicit_conv.verify.simulate import simulate
from implicit_conv.verify.testing import loaded, plan_small, stored

CASE = Case(
    N=2, C=48, K=40, size=(5, 7), padding=((1, 1), (1, 1)), layout="NHWC", weight_layout="KRSC"
)
FACTORIES = (
    fprop.make_fprop,
    fprop.make_consumer,
    consumer.make_multiply,
    producer.make_producer,
    producer.make_tensor_producer,
    producer.make_thread_producer,
    producer.make_load_activation,
)


@pytest.fixture(autouse=True)
def fresh_kernels():
    """Empty the caches of kernels before and after, so that no planted bug stays in them."""
    for factory in FACTORIES:
        factory.cache_clear()
    yield
    for factory in FACTORIES:
        factory.cache_clear()


def outcome(name, change=lambda plan: plan, seed=0):
    """The string "right" or "wrong", or the report of the simulator."""
    family = FAMILIES[name] if isinstance(name, str) else name
    v = family.variants[0]
    plan = change(plan_small(CASE, family, v))
    x, w = CASE.inputs(1, integers=True)
    arrays = (stored(a, v.dtype) for a in CASE.arrange(x, w))
    try:
        y = loaded(simulate(plan, *arrays, blocks=2, seed=seed), v.dtype)
    except SimulationError as error:
        return str(error)
    expected = loaded(stored(CASE.reference(x, w), v.dtype), v.dtype)
    return "right" if np.array_equal(to_nchw(y, "NHWC"), expected) else "wrong"


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_planted(name):
    assert outcome(name) == "right"


def test_more_registers_than_the_block_has(monkeypatch):
    """Of three warpgroups, the second that claims registers would wait for ever."""
    v = replace(FAMILIES["tma-wgmma"].variants[0], tile_m=128, warps_m=8)
    split = replace(FAMILIES["tma-wgmma"], name="split", variants=(v,))
    assert outcome(split) == "right"
    monkeypatch.setattr(fprop, "PRODUCER_REGISTERS", 80)
    fprop.make_fprop.cache_clear()
    found = outcome(split)
    assert found.startswith("deadlock")
    assert re.search(r"waits for 1536 registers, of which \d+ are free", found)


@pytest.mark.parametrize("name", ["tma-w-mma", "tma-w-wgmma-registers", "tma-w-wgmma"])
def test_wrong_shift(name, monkeypatch):
    view = schedule.tap_view
    monkeypatch.setattr(schedule, "tap_view", lambda g, wide, s: (view(g, wide, s)[0], min(s, 1)))
    assert outcome(name) == "wrong"


@pytest.mark.parametrize("name", ["tma-wgmma", "tma-w-wgmma-registers"])
def test_wrong_sbo(name, monkeypatch):
    wrong = {span: value ^ 0x0000_0060_0000_0000 for span, value in mma.DESCRIPTOR.items()}
    monkeypatch.setattr(mma, "DESCRIPTOR", wrong)
    assert outcome(name) != "right"


@pytest.mark.parametrize("name", ["tma-mma", "tma-w-mma", "cp_async-mma", "fma", "tma-wgmma"])
def test_wrong_swizzle(name, monkeypatch):
    plain = types.SimpleNamespace(swizzle=lambda address, mask: address)
    monkeypatch.setattr(consumer, "walk", plain)
    no_swizzle = {span: value & ~(3 << 62) | 3 << 62 for span, value in mma.DESCRIPTOR.items()}
    monkeypatch.setattr(mma, "DESCRIPTOR", no_swizzle)
    assert outcome(name) != "right"


@pytest.mark.parametrize("name", ["tma-mma", "cp_async-mma"])
def test_wrong_fragment_row(name, monkeypatch):
    """Registers 1 and 2 exchanged: rows + 8 are read as columns + 8."""

    def ldmatrix(count, step):
        hook = consumer_smem.ldmatrix(count, step)

        def swapped(address):
            r = hook(address)
            return tuple(r[i ^ 3 if i % 4 in (1, 2) else i] for i in range(len(r)))

        return swapped

    consumer_smem = consumer.smem
    monkeypatch.setattr(consumer, "smem", types.SimpleNamespace(ldmatrix=ldmatrix))
    assert outcome(name) == "wrong"


@pytest.mark.parametrize("name", FAMILIES)
def test_parity_never_turns(name, monkeypatch):
    def advance(of, stage, parity):
        return (stage + 1) % of.stages, parity

    monkeypatch.setattr(ring, "advance", advance)
    report = outcome(name)
    assert any(words in report for words in ("deadlock", "before", "phase 0: 1 arrivals, but only"))


@pytest.mark.parametrize(("wrong", "said"), [(128, "128 bytes"), (-128, "-128 bytes, more came")])
@pytest.mark.parametrize("name", ["tma-mma", "tma-w-mma", "tma-wgmma"])
def test_wrong_byte_count(name, wrong, said):
    def change(plan):
        layout = plan.layout._replace(a_load=plan.layout.a_load + wrong)
        return replace(plan, layout=layout)

    report = outcome(name, change)
    assert "deadlock" in report
    assert f"A full[0] phase 0 lacks 0 of 1 arrivals and {said}" in report


@pytest.mark.parametrize("name", FAMILIES)
def test_read_before_full(name, monkeypatch):
    monkeypatch.setattr(ring, "wait_full", lambda *arguments: None)
    report = outcome(name)
    assert "before it is full" in report or "never written" in report
    assert "stage 0" in report


@pytest.mark.parametrize("name", FAMILIES)
def test_overwrite_before_empty(name, monkeypatch):
    monkeypatch.setattr(ring, "wait_empty", lambda *arguments: None)
    report = outcome(name)
    assert "overwrites" in report or "arrivals, but only" in report


def test_stage_never_released(monkeypatch):
    monkeypatch.setattr(ring, "release", lambda *arguments: None)
    report = outcome("tma-mma")
    assert "deadlock" in report and "waits for A empty[0], parity 0" in report


def test_every_lane_releases(monkeypatch):
    """Every lane arrives, but the barrier expects one arrival per warp."""
    release = ring.release
    monkeypatch.setattr(ring, "release", lambda r, stage, lane: release(r, stage, 0 * lane))
    assert "32 arrivals, but only 2 of 2 are missing" in outcome("tma-mma")


def test_copy_without_elect(monkeypatch):
    monkeypatch.setattr(warp, "elect", lambda: True)
    report = outcome("tma-mma")
    assert "arrivals, but only" in report or "issued by one lane" in report


def test_branch_on_a_lane(monkeypatch):
    """A divergent branch is an error, not a silent choice."""

    def release(of, stage, lane):
        if lane == 0:
            pass

    monkeypatch.setattr(ring, "release", release)
    with pytest.raises(ValueError, match="truth value of an array"):
        outcome("tma-mma")
