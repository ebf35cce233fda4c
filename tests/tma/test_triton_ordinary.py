"""Ordinary kernels of Triton are right at any number of warps, and planted races are found.

Where a tile has fewer elements than a block has threads, Triton lets several warps write the same
values to the same words.
"""

import re

import numpy as np
import pytest

from implicit_conv import tma
from implicit_conv.tma.check import triton_check

pytest.importorskip("triton", reason="needs triton")
pytest.importorskip("torch", reason="Triton's descriptors are made of torch's tensors")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
RNG = np.random.default_rng(1)
ROWS, N = 3, 100


def drawn(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def normalised(x):
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)


def soft(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def by_rows(function, dtype=None, shape=None):
    """A kernel of rows of N elements: (grid, arguments, expected)."""
    x = drawn(ROWS, N)
    want = function(x)
    return ROWS, {"x": x, "y": np.zeros_like(want), "N": N, "B": 128}, want


def sums():
    x = drawn(16, N)
    return 1, {"x": x, "y": np.zeros(16, np.float32), "N": N, "M": 16, "B": 128}, x.sum(1)


def transposed():
    x = drawn(8, 16)
    return 1, {"x": x, "y": np.zeros((16, 8), np.float32), "M": 8, "N": 16}, x.T


def product():
    x, w = (RNG.integers(-3, 4, shape).astype(np.float16) for shape in ((16, 48), (48, 16)))
    want = x.astype(np.float32) @ w.astype(np.float32)
    return 1, {"x": x, "w": w, "y": np.zeros_like(want), "K": 48, "B": 16}, want


def attention():
    q, k, v = (drawn(32, 16).astype(np.float16) for _ in range(3))
    wide = [each.astype(np.float32) for each in (q, k, v)]
    want = soft(wide[0] @ wide[1].T) @ wide[2]
    return 2, {"q": q, "k": k, "v": v, "y": np.zeros_like(want), "N": 32, "D": 16, "B": 16}, want


def doubled():
    x = drawn(8, 8)
    return 1, {"x": x, "y": np.zeros_like(x), "M": 8, "N": 8, "BM": 8, "BN": 8}, 2 * x


KERNELS = {
    "softmax": lambda: by_rows(soft),
    "row_sums": sums,
    "layer_norm": lambda: by_rows(normalised),
    "largest": lambda: by_rows(lambda x: x.argmax(1).astype(np.int32)),
    "cumulative": lambda: by_rows(lambda x: x.cumsum(1)),
    "ordered": lambda: by_rows(lambda x: np.sort(x, 1)),
    "transposed": transposed,
    "product": product,
    "attention": attention,
    "doubled": doubled,
}


def checked(name, warps, seed=0):
    import triton_ordinary

    grid, arguments, want = KERNELS[name]()
    report = tma.check_triton(
        getattr(triton_ordinary, name),
        grid,
        arguments,
        launch={"num_warps": warps},
        unfenced_barriers=True,
        seed=seed,
    )
    return report, arguments["y"], want


@pytest.mark.parametrize("warps", [1, 2, 4, 8])
@pytest.mark.parametrize("name", KERNELS)
def test_nothing_is_wrong(name, warps):
    for seed in (0, 1):
        report, y, want = checked(name, warps, seed)
        assert report.problems == []
        np.testing.assert_allclose(y, want, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "largest", "transposed", "row_sums"])
@pytest.mark.parametrize("step", ["%tid.x", "%laneid"])
def test_different_values_in_one_word_are_found(name, step, monkeypatch):
    """Each thread, or each lane of a warp, writes its own number to one word."""

    def check(text, *rest, **named):
        lines = text.splitlines()
        place = next(n for n, line in enumerate(lines) if "st.shared" in line)
        target = re.search(r"\[ ?(%\w+)", lines[place])[1]
        planted = f"""{{ .reg .b32 at, own; and.b32 at, {target}, -128; mov.u32 own, {step};
        st.shared.b32 [at], own; }}"""
        return tma.check_kernel(
            "\n".join([*lines[:place], planted, *lines[place:]]), *rest, **named
        )

    monkeypatch.setattr(triton_check, "check_kernel", check)
    report, _, _ = checked(name, 4)
    (problem,) = report.problems
    words = "lanes write different values" if step == "%laneid" else "different values|no barrier"
    assert re.search(words, problem) and re.search(r"\(\S+\.py:\d+[,)]", problem)
