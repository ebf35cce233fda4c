"""Arrays of other libraries, by stand-ins: how they are read, and what results become.

tests/api/test_torch.py repeats what matters with torch itself, where that is installed.
"""

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from small_trials import of_every_operator

import implicit_conv as ic
from implicit_conv.arrays.libraries import as_library_of, library
from implicit_conv.process.preparation import imported
from implicit_conv.scale.sources import file_array
from implicit_conv.testing.check import verify
from implicit_conv.testing.trial import inputs


class Foreign:
    """An array of another library on the CPU."""

    def __init__(self, array):
        self.array = array

    dtype = property(lambda self: self.array.dtype)
    shape = property(lambda self: self.array.shape)

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return (1, 0)


class Standard(Foreign):
    """An array of a library that follows the array API standard."""

    def __array_namespace__(self):
        return SimpleNamespace(from_dlpack=self.imported)

    @classmethod
    def imported(cls, y):
        y.__dlpack__()  # it raises where numpy does not export the dtype
        return cls(y)


class Narrowing(Foreign):
    """An array of a library that makes 32 bits of 64 bits, as JAX does by default."""

    def __array_namespace__(self):
        return SimpleNamespace(from_dlpack=lambda y: Narrowing(y.astype(np.float32)))


class Raising(Foreign):
    """An array of a library that imports nothing."""

    def __array_namespace__(self):
        return SimpleNamespace(from_dlpack=self.refuse)

    def refuse(self, y):
        raise BufferError("no")


class Tensor(Foreign):
    """A tensor as torch's are: its memory may hold the negative of its values."""

    __module__ = "torch.stand_in"
    requires_grad, is_quantized, is_cuda, layout = False, False, False, "torch.strided"
    __torch_dispatch__ = None
    device = SimpleNamespace(type="cpu")

    def __init__(self, array, negative=False, **changes):
        super().__init__(array)
        self.negative = negative
        vars(self).update(changes)

    def resolve_conj(self):
        return self

    def resolve_neg(self):
        return Tensor(-self.array) if self.negative else self

    def view(self, dtype):
        return Tensor(self.array.view(dtype))


@pytest.fixture(autouse=True)
def stand_in_for_torch(monkeypatch):
    stand_in = SimpleNamespace(from_numpy=Tensor, Tensor=Tensor, bfloat16=ml_dtypes.bfloat16)
    stand_in.is_grad_enabled = lambda: True
    stand_in._is_functional_tensor = lambda tensor: False
    monkeypatch.setitem(sys.modules, "torch", stand_in)


X = np.arange(2 * 25, dtype=np.float32).reshape(1, 2, 5, 5)
W = np.arange(3 * 18, dtype=np.float32).reshape(3, 2, 3, 3) % 5
Y = ic.conv2d(X, W)


@pytest.mark.parametrize(
    ("kind", "result"),
    [(Tensor, Tensor), (Standard, Standard), (Foreign, np.ndarray), (Raising, np.ndarray)],
)
def test_a_result_is_of_the_library_of_x(kind, result):
    plan = ic.plan_conv2d(X.shape, W.shape)
    for y in (
        ic.conv2d(kind(X), W),
        ic.conv2d(kind(X), kind(W)),
        plan(kind(X), W),
        plan(kind(X), plan.pack(kind(W))),
    ):
        assert type(y) is result
        np.testing.assert_array_equal(getattr(y, "array", y), Y)
    for y in (ic.conv2d(X, kind(W)), plan(X, kind(W)), plan(X, plan.pack(kind(W)))):
        assert type(y) is np.ndarray
    columns = ic.im2col(kind(X), 3)
    assert type(columns) is result
    assert type(ic.col2im(columns, X.shape, 3)) is result
    for rank in (1, 3):
        x = np.ones((1, 2, *[4] * rank), np.float32)
        columns = ic.im2col(kind(x), (3,) * rank)
        assert type(columns) is result
        assert type(ic.col2im(columns, x.shape, (3,) * rank)) is result


@pytest.mark.parametrize(("kind", "result"), [(Tensor, Tensor), (Foreign, np.ndarray)])
@of_every_operator
def test_results_of_operators_are_of_the_library_of_the_first_operand(trial, kind, result):
    given, plan = inputs(trial), trial.plan()
    second = given.second if trial.made.result == "w" else plan.pack(kind(given.second))
    for y in (
        trial.call(kind(given.first), given.second),
        trial.call(kind(given.first), kind(given.second)),
        plan(kind(given.first), second),
    ):
        assert type(y) is result
        verify(trial, given, getattr(y, "array", y))
    assert type(trial.call(given.first, kind(given.second))) is np.ndarray
    out = np.empty_like(trial.call(given.first, given.second))
    assert trial.call(kind(given.first), kind(given.second), out=out) is out
    verify(trial, given, out)
    if trial.made.epilogue:
        more = inputs(replace(trial, biased=True, added=True, scaled=True))
        names = "scale", "bias", "residual"
        y = trial.call(more.first, more.second, **{n: kind(getattr(more, n)) for n in names})
        verify(trial, more, y)


@of_every_operator
@pytest.mark.parametrize("which", [0, 1])
def test_operators_refuse_tensors_that_record_gradients_by_name(trial, which):
    given = inputs(trial)
    operands = [given.first, given.second]
    operands[which] = Tensor(operands[which], requires_grad=True)
    first, second = trial.roles
    name = (first, second)[which] if "grad" in trial.operator else "xw"[which]
    name = {"y": "dy"}.get(name, name)
    with pytest.raises(ic.PlanError, match=f"^{name} requires gradients"):
        trial.call(*operands)


def test_a_result_in_out_is_out():
    out = np.empty_like(Y)
    assert ic.conv2d(Tensor(X), W, out=out) is out
    assert ic.plan_conv2d(X.shape, W.shape)(Tensor(X), W, out=out) is out


def test_a_list_gives_a_numpy_array():
    y = ic.conv2d(X.astype(float).tolist(), W.astype(float))
    assert type(y) is np.ndarray and y.dtype == float


def test_a_library_that_changes_the_dtype_gets_the_numpy_array():
    assert type(ic.conv2d(Narrowing(X), W)) is Narrowing
    y = ic.conv2d(Narrowing(X), W, out_dtype="float64")
    assert type(y) is np.ndarray and y.dtype == float


def test_bfloat16_becomes_a_tensor_through_integers():
    y = Y.astype(ml_dtypes.bfloat16)
    tensor = as_library_of(Tensor(X), y)
    assert type(tensor) is Tensor and tensor.dtype == ml_dtypes.bfloat16
    assert np.shares_memory(tensor.array, y)
    assert as_library_of(Standard(X), y) is y  # numpy does not export bfloat16


def test_memory_that_is_pinned_for_a_gpu_is_read():
    pinned = Foreign(X)
    pinned.__dlpack_device__ = lambda: (3, 0)
    np.testing.assert_array_equal(ic.conv2d(pinned, W), Y)
    np.testing.assert_array_equal(ic.conv2d(X, W, residual=Foreign(Y)), 2 * Y)


def test_a_tensor_that_wraps_others_is_refused():
    wrapper = type("Fake", (Tensor,), {"__torch_dispatch__": print})
    with pytest.raises(ic.DTypeError, match=r"^w is a Fake, whose memory is not its own"):
        ic.conv2d(X, wrapper(W))


def test_a_negative_bit_is_resolved():
    np.testing.assert_array_equal(ic.conv2d(Tensor(-X, negative=True), W).array, Y)
    np.testing.assert_array_equal(ic.conv2d(X, Tensor(-W, negative=True)), Y)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"requires_grad": True}, ic.PlanError, r"requires gradients.*pass {}.detach\(\)"),
        (
            {"layout": "torch.sparse_coo"},
            ic.DTypeError,
            r"is .* torch.sparse_coo; pass {}.to_dense\(\)",
        ),
        ({"is_quantized": True}, ic.DTypeError, r"is a quantized tensor; pass {}.dequantize\(\)"),
        ({"device": SimpleNamespace(type="meta")}, ic.PlanError, "is on device meta"),
    ],
)
@pytest.mark.parametrize("name", ["x", "w", "bias", "residual"])
def test_tensors_that_are_no_plain_memory_are_refused_by_name(name, changes, error, message):
    given = {"x": X, "w": W, "bias": np.ones(3, np.float32), "residual": Y}
    given[name] = Tensor(given[name], **changes)
    plan = ic.plan_conv2d(X.shape, W.shape)
    for call in (ic.conv2d, plan):
        with pytest.raises(error, match=f"^{name} {message.format(name)}"):
            call(**given)


def test_columns_refuse_by_name():
    with pytest.raises(ic.PlanError, match=r"^x requires gradients"):
        ic.im2col(Tensor(X, requires_grad=True), 3)
    with pytest.raises(ic.PlanError, match=r"^cols requires gradients"):
        ic.col2im(Tensor(X[0, 0], requires_grad=True), (1, 1, 5, 1), (1, 1))


def test_a_subclass_belongs_to_the_library_of_its_base():
    assert library(type("Image", (Tensor,), {"__module__": "mine"})(X)) == "torch"
    assert library(X) == "numpy" and library([]) == "builtins"


def half_imported(name):
    """What sys.modules has of a module while another thread imports it."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    module.__spec__._initializing = True
    return module


def test_calls_read_no_module_that_another_thread_imports(monkeypatch):
    for name in ("numpy.ma", "h5py"):
        monkeypatch.setitem(sys.modules, name, half_imported(name))
    x, w = np.ones((1, 2, 9, 9), np.float32), np.ones((4, 2, 3, 3), np.float32)
    plan = ic.plan_conv2d(x.shape, w.shape)
    assert (plan(x, plan.pack(w)) == 18).all()
    assert (ic.conv2d(Foreign(x), w) == 18).all()
    on_disk = SimpleNamespace(shape=x.shape, dtype=x.dtype, __getitem__=x.__getitem__)
    assert file_array(on_disk).shape == x.shape


def test_a_module_is_imported_once_its_import_has_ended(monkeypatch):
    assert imported("implicit_conv") is ic
    assert imported("no_module_of_this_name") is None
    monkeypatch.setattr(ic.__spec__, "_initializing", True, raising=False)
    assert imported("implicit_conv") is None
