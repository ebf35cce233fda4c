"""torch's own samples of convolutions, and its checks of gradients and errors, under `enable`, and
samples of what the backend of torch.compile takes.
"""

import warnings

import pytest

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")
pytest.importorskip("expecttest", reason="pip install expecttest, which .ci/run does")

import implicit_conv.torch as door  # noqa: E402
from implicit_conv.torch.backend import backend  # noqa: E402
from implicit_conv.torch.region import BoundProgram  # noqa: E402

pytestmark = [
    pytest.mark.slow,  # to import the samples takes as long as many tests
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch"),  # its own
    pytest.mark.filterwarnings("ignore::FutureWarning:torch"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths"),
]
NAMES = [f"nn.functional.conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)]
EPS = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


@pytest.fixture(scope="module")
def infos():
    """torch's descriptions of operators by their names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of torch's own imports
        from torch.testing._internal.common_methods_invocations import op_db

    return {info.name: info for info in op_db}


def samples(info, dtype, **options):
    """Calls of an operator: its function of tensors, and the tensors."""
    for sample in info.sample_inputs("cpu", dtype, **options):
        tensors = [sample.input, *(a for a in sample.args if torch.is_tensor(a))]
        rest = sample.args[len(tensors) - 1 :]

        def call(*given, rest=rest, options=sample.kwargs):
            return info.op(*given, *rest, **options)

        yield call, tensors


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("name", NAMES)
def test_samples(name, dtype, infos, ours):
    count = 0
    for call, tensors in samples(infos[name], dtype):
        exact, theirs = call(*[t.double() for t in tensors]), call(*tensors)
        with door.enable():
            found = call(*tensors)
        scale = max(1.0, float(exact.abs().max())) if exact.numel() else 1.0
        assert found.shape == theirs.shape and found.dtype == theirs.dtype
        assert bool(((found.double() - exact).abs() <= EPS[dtype] * scale).all())
        if 1 not in found.shape and found.numel():
            assert found.stride() == theirs.stride()
        count += 1
    assert len(ours) > count // 2, "most samples are ours"


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name, infos, ours):
    for call, tensors in samples(infos[name], torch.float64, requires_grad=True):
        with door.enable():
            assert torch.autograd.gradcheck(call, tensors, check_forward_ad=True, fast_mode=True)
            assert torch.autograd.gradgradcheck(call, tensors, fast_mode=True)
    assert ours


@pytest.mark.parametrize("name", NAMES[:3])  # the others have no such samples
def test_errors(name, infos):
    for error in infos[name].error_inputs("cpu"):
        sample = error.sample_input
        with door.enable(), pytest.raises(error.error_type, match=error.error_regex):
            infos[name].op(sample.input, *sample.args, **sample.kwargs)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_samples(name, infos, ours):
    for call, tensors in list(samples(infos[name], torch.float32))[:2]:
        torch._dynamo.reset()
        expected = call(*tensors)
        with door.enable():
            found = torch.compile(call, dynamic=False)(*tensors)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-3)
        assert found.stride() == expected.stride()
    assert ours


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("name", [*NAMES, "nn.functional.batch_norm"])
def test_samples_under_the_backend(name, dtype, infos, monkeypatch):
    runs, run = [], BoundProgram.run
    monkeypatch.setattr(BoundProgram, "run", lambda *given: runs.append(1) or run(*given))
    for given in samples(infos[name], dtype):
        torch._dynamo.reset()
        normed = name.endswith("batch_norm") and 3 <= given[1][0].dim() <= 5
        call, tensors = after_convolution(*given) if normed else given
        compiled = torch.compile(call, backend=backend, options={"choose": "always"}, dynamic=False)
        with torch.no_grad():
            exact = call(*[t.clone().double() for t in tensors])
            theirs = call(*[t.clone() for t in tensors])
            for _ in range(2):
                found = compiled(*[t.clone() for t in tensors])
        scale = max(1.0, float(exact.abs().max())) if exact.numel() else 1.0
        assert (found.shape, found.dtype) == (theirs.shape, theirs.dtype)
        assert found.stride() == theirs.stride()
        close = (found.double() - exact).abs() <= EPS[dtype] * scale
        assert bool((close | exact.isnan()).all())
    assert runs


def after_convolution(call, tensors):
    """A call of what a convolution computes from its image, which it leaves as it is."""
    x = tensors[0]
    eye = torch.eye(x.shape[1], dtype=x.dtype).reshape(x.shape[1], -1, *[1] * (x.dim() - 2))
    convolve = (torch.conv1d, torch.conv2d, torch.conv3d)[x.dim() - 3]
    return lambda eye, x, *rest: call(convolve(x, eye), *rest), [eye, *tensors]
