"""Inputs and expected outputs of the launches of a kit, made where it runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from implicit_conv.testing import Case, from_nchw, to_nchw
from implicit_conv.testing.gpu.problems import loaded, stored
from perf.bringup.kit import Kit, Launch
from perf.shapes import case_of

Array = NDArray[Any]


class Data(NamedTuple):
    """Arrays as they are stored, and the bytes of y that are expected; None: not compared."""

    arrays: dict[str, Array]
    expected: Array | None


class Problem(NamedTuple):
    """A convolution of small integers, whose result is exact in every order of sums."""

    case: Case
    dtype: str
    seed: int
    residual: bool

    def recipe(self) -> dict[str, Any]:
        """The problem as JSON."""
        return {"kind": "problem", **self._asdict(), "case": asdict(self.case)}

    @classmethod
    def read(cls, recipe: dict[str, Any]) -> Problem:
        """The problem that `recipe` wrote."""
        fields = {name: recipe[name] for name in cls._fields}
        return cls(**{**fields, "case": case_of(recipe["case"])})

    def values(self) -> dict[str, Array]:
        """x, w, bias and residual as float32, in N, C, H, W order."""
        x, w = self.case.inputs(self.seed, integers=True)
        rng = np.random.default_rng(self.seed)
        filters, shape = self.case.K * self.case.groups, (self.case.N, *self.case.output)
        made = {"x": x, "w": w, "bias": rng.integers(-8, 9, filters).astype(np.float32)}
        if self.residual:
            images = (shape[0], filters, *shape[1:])
            made["residual"] = rng.integers(-8, 9, images).astype(np.float32)
        return made

    def result(self, values: dict[str, Array]) -> Array:
        """y as float32, in N, K, P, Q order, rounded to the dtype."""
        sums = self.case.reference(values["x"], values["w"])
        sums = sums + values["bias"].astype(np.float64).reshape(-1, *(1,) * self.case.rank)
        if self.residual:
            sums = sums + values["residual"]
        return loaded(stored(sums.astype(np.float32), self.dtype), self.dtype)

    def found(self, y: Array) -> Array:
        """Bytes of y as float32, in N, K, P, Q order."""
        case, kind = self.case, np.float32 if self.dtype == "float32" else np.uint16
        shape = (case.N, case.K * case.groups, *case.output)
        if case.layout.endswith("C"):
            shape = (shape[0], *shape[2:], shape[1])
        return to_nchw(loaded(y.view(kind).reshape(shape), self.dtype), case.layout)

    def data(self) -> Data:
        """Arrays in the layouts of the case."""
        values = self.values()
        x, w = self.case.arrange(values["x"], values["w"])
        arrays = {"x": x, "w": w, "bias": values["bias"]}
        layout = self.case.layout
        if self.residual:
            arrays["residual"] = np.ascontiguousarray(from_nchw(values["residual"], layout))
        y = np.ascontiguousarray(from_nchw(self.result(values), layout))
        given = {name: stored(array, self.dtype) for name, array in arrays.items()}
        return Data(given, stored(y, self.dtype).reshape(-1).view(np.uint8))


def data_of(kit: Kit, launch: Launch) -> Data:
    """What goes into a launch, and what must come out."""
    recipe = launch.recipe
    if recipe["kind"] == "problem":
        return Problem.read(recipe).data()
    if recipe["kind"] == "files":
        arrays = {n: np.frombuffer(kit.files[f], np.uint8) for n, f in recipe["arrays"].items()}
        return Data(arrays, np.frombuffer(kit.files[recipe["expected"]], np.uint8))
    rng = np.random.default_rng(recipe["seed"])  # a layer: random bits of numbers in [1, 2)
    block = stored(rng.random(1 << 16, np.float32) + 1, recipe["dtype"])
    sizes = {name: launch.arrays[name]["bytes"] // block.itemsize for name in ("x", "w")}
    return Data({name: np.resize(block, size) for name, size in sizes.items()}, None)
