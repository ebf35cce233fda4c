"""Rivals of a run have vectors as wide as ours."""

from types import SimpleNamespace

import pytest

from perf import opponents


@pytest.fixture
def narrow(monkeypatch):
    """A CPU with AVX-512 where ours uses AVX2, and nobody has told torch."""
    monkeypatch.setattr(opponents, "host_features", lambda: {"avx512f": True})
    monkeypatch.setattr(opponents, "cpu_arch", lambda: SimpleNamespace(vector_bits=256))
    for name in opponents.TORCH_AVX2:
        monkeypatch.delenv(name, raising=False)


def test_torch_is_told_to_use_narrow_vectors(narrow, monkeypatch):
    with pytest.raises(ValueError, match=r"256 bits .*set ONEDNN_MAX_CPU_ISA=AVX2 MKL_EN"):
        opponents.opponents(["torch"])
    for name in ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS"):
        monkeypatch.setenv(name, "AVX2")
    with pytest.raises(ValueError, match="set ATEN_CPU_CAPABILITY=avx2, so"):
        opponents.opponents(["torch"])
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert opponents.opponents(["torch", "numpy"]) == ["torch", "numpy"]


def test_engines_cannot_be_told(narrow):
    with pytest.raises(ValueError, match="onnxruntime cannot be told so: leave it out"):
        opponents.opponents(["onnxruntime"])
    assert opponents.opponents(["nothing"]) == []


def test_torch_is_not_narrowed_alone(monkeypatch):
    """NUMBA_CPU_NAME alone leaves ours the features of the CPU."""
    monkeypatch.setattr(opponents, "host_features", lambda: {"avx512f": True})
    monkeypatch.setattr(opponents, "cpu_arch", lambda: SimpleNamespace(vector_bits=512))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    with pytest.raises(ValueError, match="limited to AVX2 by ONEDNN_MAX_CPU_ISA: unset that"):
        opponents.opponents(["torch"])
    assert opponents.opponents(["onnxruntime"]) == ["onnxruntime"]


@pytest.mark.parametrize(("features", "bits"), [({"avx512f": True}, 512), ({}, 256)])
def test_other_runs_have_the_rivals_that_they_name(features, bits, monkeypatch):
    for name in opponents.TORCH_AVX2:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(opponents, "host_features", lambda: features)
    monkeypatch.setattr(opponents, "cpu_arch", lambda: SimpleNamespace(vector_bits=bits))
    assert opponents.opponents(["torch", "onnxruntime"]) == ["torch", "onnxruntime"]
    monkeypatch.setattr(opponents, "find_spec", lambda name: None)
    assert opponents.opponents(None) == []
