"""The fuzz of this door finds the faults of packed filters that were planted, within a minute."""

import os
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

from implicit_conv.testing import loop  # noqa: E402
from implicit_conv.testing.__main__ import main  # noqa: E402
from implicit_conv.torch import front, steps  # noqa: E402
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

    def reads_bias(step, bias):
        return bias is None or bias.stride(0) == 1

    monkeypatch.setattr(steps.Step, "reads_bias", reads_bias)


def strided_biases(monkeypatch):
    """It reads biases of sums whose elements are apart, too."""

    def reads_bias(step, bias, of=steps.Step.reads_bias):
        return bias is None or bias.element_size() > 2 or of(step, bias)

    monkeypatch.setattr(steps.Step, "reads_bias", reads_bias)


def compiled_biases(monkeypatch):
    """Compiled code alone reads any bias whose elements are adjacent."""

    class AnyBias:
        """A step, which says so."""

        def __init__(self, step):
            self.__dict__["step"] = step

        def __getattr__(self, name):
            return getattr(self.step, name)

        def __setattr__(self, name, value):
            setattr(self.step, name, value)

        def reads_bias(self, bias):
            return bias is None or bias.stride(0) == 1

    keep = front.Front.keep
    monkeypatch.setattr(
        front.Front,
        "keep",
        lambda calls, key, step, arguments: keep(calls, key, AnyBias(step), arguments),
    )


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the child has what the test plants")
@pytest.mark.parametrize(
    "plant", [small_key, dropped_reference, sixteen_bit_biases, strided_biases, compiled_biases]
)
def test_a_planted_fault_is_found_within_a_minute(plant, monkeypatch, capfd):
    plant(monkeypatch)
    monkeypatch.setattr(loop, "MOST_FAILURES", 1)
    status = main(["fuzz", "--door", "torch", "--seed", "1", "--seconds", "60"])
    output = capfd.readouterr().out
    assert status == 1, output
    assert "This program repeats it:" in output
