"""Random calls of all operators on a driver that convolves, repeated with new values at new
addresses, against torch in float64. Data are small integers, so that sums are exact.
"""

from concurrent.futures import ThreadPoolExecutor
from time import sleep

import numpy as np
import pytest
import sampling

import implicit_conv
from implicit_conv.arrays.arrays import numpy_dtype
from implicit_conv.gpu.cuda.kernel import Kernel
from implicit_conv.gpu.run import run, wgrad
from implicit_conv.problem.options import GPU_DTYPES, LAYOUTS_OF, WEIGHT_LAYOUTS_OF

torch = pytest.importorskip("torch", reason="pip install '.[torch]'")

RUNS = 1, 2, 3, 4, 33, 40
TRANSPOSED = "conv_transpose{}d"
OPERATORS = {  # what each reads and computes of x, w, y = conv(x, w)
    "conv{}d": ("x", "w", "y"),
    TRANSPOSED: ("y", "w", "x"),
    "conv{}d_input_grad": ("y", "w", "x"),
    "conv{}d_weight_grad": ("x", "y", "w"),
}
EPILOGUE = "bias", "residual"


def drawn(rng, operator):
    """What stays the same in repetitions: shapes are in torch's order of axes, and each array has
    its channels last or not, a gap after each row, and first elements in turn.
    """
    rank, groups, n = (int(rng.choice(each)) for each in ([1, 2, 2], [1, 1, 2, 3], [1, 2, 3]))
    c, k = int(rng.choice([1, 3, 8, 16])), int(rng.choice([1, 4, 5, 8]))
    r, stride, dilation = (rng.integers(1, end, rank) for end in (4, 4, 3))
    pad, reach = rng.integers(0, 3, rank), (r - 1) * dilation + 1
    size = rng.integers(np.maximum(1, reach - 2 * pad), 10)
    if not rng.integers(3):  # patches
        stride, dilation, pad, reach, size = r, r * 0 + 1, r * 0, r, size // r * r + r
    steps, rest = np.divmod(size + 2 * pad - reach, stride)
    shapes = {
        "x": (n, c * groups, *size.tolist()),
        "w": (k * groups, c, *r.tolist()),
        "y": (n, k * groups, *(steps + 1).tolist()),
    }
    window = {"stride": stride, "padding": pad, "dilation": dilation}
    return {
        "operator": operator,
        "dtype": str(rng.choice(GPU_DTYPES)),
        "shapes": shapes,
        "sizes": {name: each.tolist() for name, each in window.items()} | {"groups": groups},
        "rest": rest.tolist(),
        "layouts": (str(rng.choice(LAYOUTS_OF[rank])), str(rng.choice(WEIGHT_LAYOUTS_OF[rank]))),
        "added": [name for name in EPILOGUE if "grad" not in operator and rng.integers(2)],
        "places": {
            name: [
                int(rng.choice(each)) for each in ((0, 1), (0, 0, 8, 3), (0, 0, 1, 8), (0, 0, 1))
            ]
            for name in (*shapes, "residual")
        },
        "out": bool(rng.integers(4)),
        "way": str(rng.choice(["function", "plan", "packed"])),
        "threads": int(rng.choice([1, 2])),
    }


def expected(kind, result, given):
    """The result by torch in float64."""
    of = {name: torch.from_numpy(each.astype("f8")) for name, each in given.items()}
    sizes, rank = kind["sizes"], len(kind["rest"])
    window = sizes["stride"], sizes["padding"], sizes["dilation"]
    none = [0] * rank
    if result == "y":
        conv = False, none, sizes["groups"]
        found = torch.convolution(of["x"], of["w"], of.get("bias"), *window, *conv)
    elif result == "x":
        conv = True, kind["rest"], sizes["groups"]
        found = torch.convolution(of["y"], of["w"], of.get("bias"), *window, *conv)
    else:
        w, conv = torch.empty(kind["shapes"]["w"], dtype=torch.float64), (False, none)
        rest = *conv, sizes["groups"], (False, True, False)
        gradient = torch.ops.aten.convolution_backward
        _, found, _ = gradient(of["y"], of["x"], w, None, *window, *rest)
    return found.numpy() + (given["residual"].astype("f8") if "residual" in given else 0)


class Calls:
    """Calls of a kind."""

    def __init__(self, kind, placed, fetched):
        """`placed` and `fetched` are the fixtures."""
        self.kind, self.placed, self.fetched = kind, placed, fetched
        operator, rank, (layout, filters) = kind["operator"], len(kind["rest"]), kind["layouts"]
        images = [*map(LAYOUTS_OF[rank][0].index, layout)]
        self.axes = dict.fromkeys(("x", "y", "residual"), images) | {"bias": [0]}
        self.axes["w"] = [*map(WEIGHT_LAYOUTS_OF[rank][0].index, filters)]
        options = kind["sizes"] | {"layout": layout, "weight_layout": filters}
        if operator == TRANSPOSED:
            options["weight_layout"] = filters.translate(str.maketrans("KC", "CK"))
            options["output_padding"] = kind["rest"]
        *self.read, self.result = OPERATORS[operator]
        *shapes, made = (
            tuple(kind["shapes"][name][axis] for axis in self.axes[name])
            for name in OPERATORS[operator]
        )
        sizes, name = [made] if "grad" in operator else [], operator.format(rank)
        function = getattr(implicit_conv, name)
        if kind["way"] == "function":
            self.call = lambda a, b, *bias, **more: function(a, b, *sizes, *bias, **options, **more)
        else:
            plan = getattr(implicit_conv, f"plan_{name}")
            self.call = plan(*shapes, *sizes, dtype=kind["dtype"], device="cuda", **options)

    def place(self, rng, name, content):
        """A device array in the layout of calls, of what has torch's order of axes."""
        last, gap, *offsets = self.kind["places"].get(name, (0, 0, 0))
        offset = int(rng.choice(offsets))
        given = content.transpose(self.axes[name])
        order = (0, *range(2, given.ndim), 1) if last else None
        return self.placed(given, order, gap, offset)

    def __call__(self, seed, looks):
        """Compute with new values at new addresses, and compare if it `looks`."""
        rng, kind, result = np.random.default_rng(seed), self.kind, self.result
        dtype, shapes = numpy_dtype(kind["dtype"]), dict(kind["shapes"])
        shapes |= {"bias": shapes[result][1:2], "residual": shapes[result]}
        given = {
            name: rng.integers(-1, 2, shapes[name]).astype(dtype)
            for name in (*self.read, *kind["added"])
        }
        first, second, *added = (self.place(rng, name, content) for name, content in given.items())
        if kind["way"] == "packed" and self.read[1] == "w":
            second = self.call.pack(second)
        more = dict(zip(kind["added"], added, strict=True))
        if kind["out"]:
            more["out"] = self.place(rng, result, np.full(shapes[result], np.nan, dtype))
        found = self.call(first, second, **more)
        if looks:
            want = expected(kind, result, given).transpose(self.axes[result])
            np.testing.assert_array_equal(self.fetched(found).view(dtype), want, str(kind))


@sampling.resampled
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("seed", range(sampling.count(4, 1000, 60)))
def test_drawn_calls(recorder, placed, fetched, monkeypatch, operator, seed):
    """Of one thread, or of two at a time, as which compilers and drivers are called."""

    def maker(owner, shape, axes, dtype):
        order = tuple(np.argsort(axes))
        nothing = np.full(shape, np.nan, numpy_dtype(dtype)).transpose(axes)
        return lambda x: placed(nothing, order)

    enqueue = Kernel.enqueue

    def shared(*given):
        enqueue(*given)
        sleep(0)  # the other thread goes on

    monkeypatch.setattr(Kernel, "enqueue", shared)
    for module in (run, wgrad):
        monkeypatch.setattr(module, "result_maker", maker)
    recorder.convolved.append("bfloat16")
    rng = np.random.default_rng([seed, [*OPERATORS].index(operator)])
    kind = drawn(rng, operator)
    calls = Calls(kind, placed, fetched)
    with ThreadPoolExecutor(kind["threads"]) as pool:
        for time in range(1, max(RUNS) + 1):
            seeds = [[seed, time, thread] for thread in range(kind["threads"])]
            [*pool.map(calls, seeds, [time in RUNS] * len(seeds))]
