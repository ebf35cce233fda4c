"""The fuzz of this door finds the faults of packed filters that were planted, within a minute."""

import os
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

from implicit_conv.kernels.cpu.runtime.program import Words  # noqa: E402
from implicit_conv.testing import loop  # noqa: E402
from implicit_conv.testing.__main__ import main  # noqa: E402
from implicit_conv.torch import steps  # noqa: E402
from implicit_conv.torch.packed import PackedFilters  # noqa: E402


def small_key(monkeypatch):
    """The order of the packed elements alone, without the operator and how bytes are read."""

    def order(step):
        return tuple(part.best_packed.packed.key for part in steps._parts(step.plan.engine))

    monkeypatch.setattr(steps.Step, "order", property(order))


def dropped_reference(monkeypatch):
    """An address that nothing keeps alive."""

    def packed(filters, step, w, of=PackedFilters.packed):
        found = of(filters, step, w)
        return None if found is None else SimpleNamespace(operand=found.operand)

    monkeypatch.setattr(PackedFilters, "packed", packed)


def sixteen_bit_biases(monkeypatch):
    """A program, which adds sums of float32, reads any bias whose elements are adjacent."""

    def reads_bias(words, dtype, shape, strides, address):
        return strides[0] == torch.finfo(getattr(torch, dtype)).bits // 8

    monkeypatch.setattr(Words, "reads_bias", reads_bias)


def strided_biases(monkeypatch):
    """It reads biases of sums whose elements are apart, too."""

    def reads_bias(words, dtype, shape, strides, address):
        return dtype == words.bias.dtype

    monkeypatch.setattr(Words, "reads_bias", reads_bias)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the child has what the test plants")
@pytest.mark.parametrize(
    "plant", [small_key, dropped_reference, sixteen_bit_biases, strided_biases]
)
def test_a_planted_fault_is_found_within_a_minute(plant, monkeypatch, capfd):
    plant(monkeypatch)
    monkeypatch.setattr(loop, "MOST_FAILURES", 1)
    status = main(["fuzz", "--door", "torch", "--seed", "1", "--seconds", "60"])
    output = capfd.readouterr().out
    assert status == 1, output
    assert "This program repeats it:" in output
