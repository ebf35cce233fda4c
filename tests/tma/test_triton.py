"""Kernels of Triton and Gluon, unedited, in check_triton: right, and with planted faults named."""

import json
import re

import numpy as np
import pytest

from implicit_conv import tma
from implicit_conv.problem.problem import Problem
from implicit_conv.tma.check import triton_check

pytest.importorskip("triton", reason="needs triton")
torch = pytest.importorskip("torch", reason="Triton's descriptors are made of torch's tensors")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
RNG = np.random.default_rng(1)


def small(*shape, dtype=np.float16):
    return RNG.integers(-3, 4, shape).astype(dtype)


def tiled(array, *box):
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(torch.from_numpy(array), list(box))


def product(**options):
    """C = A B in float32, of 64 x 64 x 32 tiles."""
    import triton_kernels

    M, N, K = 128, 64, 160
    a, b, c = small(M, K), small(K, N), np.full((M, N), np.nan, np.float32)
    given = {"a": tiled(a, 64, 32), "b": tiled(b, 32, 64), "c": tiled(c, 64, 64)}
    return tma.check_triton(
        triton_kernels.by_descriptors,
        (M // 64, N // 64),
        {**given, "M": M, "N": N, "K": K, "BM": 64, "BN": 64, "BK": 32},
        launch={"num_warps": 4, "num_stages": 3},
        expected={"c": a.astype(np.float32) @ b.astype(np.float32)},
        unfenced_barriers=True,
        **options,
    )


N, H, W, C, FILTERS, TAPS, PAD = 2, 8, 8, 32, 64, 3, 1


def convolution(pad=PAD, upper=PAD - TAPS + 1, dtype=torch.float16, **options):
    """A 3 x 3 convolution of NHWC by im2col loads, in Gluon."""
    import gluon_kernels
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor, TensorDescriptorIm2Col

    x, w = small(N, H, W, C), small(FILTERS, TAPS, TAPS, C)
    y = np.full((N * H * W, FILTERS), np.nan, np.float32)
    layouts = [gl.NVMMASharedLayout.get_default_for([n, C], gl.float16) for n in (64, FILTERS)]
    pixels = TensorDescriptorIm2Col(
        torch.from_numpy(x).to(dtype),
        x.shape,
        [stride // 2 for stride in x.strides],
        [64, C],
        layouts[0],
        pixel_box_lower_corner=[-PAD, -PAD],
        pixel_box_upper_corner=[upper, upper],
    )
    weights = TensorDescriptor.from_tensor(
        torch.from_numpy(w.reshape(FILTERS, -1)).to(dtype), [FILTERS, C], layouts[1]
    )
    nchw = torch.from_numpy(x.astype(np.float32)).permute(0, 3, 1, 2)
    kcrs = torch.from_numpy(w.astype(np.float32)).permute(0, 3, 1, 2)
    wanted = torch.nn.functional.conv2d(nchw, kcrs, padding=PAD).permute(0, 2, 3, 1)
    return tma.check_triton(
        gluon_kernels.convolution,
        N * H * W // 64,
        {"x": pixels, "w": weights, "y": y, "P": H, "Q": W}
        | {"R": TAPS, "S": TAPS, "PAD": pad, "K": FILTERS},
        expected={"y": wanted.reshape(-1, FILTERS).numpy()},
        unfenced_barriers=True,
        **options,
    )


def sums(**options):
    """The sum of tiles, by a reducing store."""
    import triton_kernels

    x, y = small(128, 64, dtype=np.float32), np.zeros((32, 64), np.float32)
    return tma.check_triton(
        triton_kernels.partial_sums,
        (4, 2),
        {"x": tiled(x, 32, 32), "y": tiled(y, 32, 32), "BM": 32, "BN": 32},
        expected={"y": x.reshape(4, 32, 64).sum(0)},
        unfenced_barriers=True,
        **options,
    )


def one_more(**options):
    """x + 1 by tensor maps that the kernel makes."""
    import triton_kernels

    x, y = small(48, 64, dtype=np.float32), np.zeros((48, 64), np.float32)
    return tma.check_triton(
        triton_kernels.one_more,
        (2, 2),
        {"x": x, "y": y, "M": 48, "N": 64, "BM": 32, "BN": 32},
        expected={"y": x + 1},
        unfenced_barriers=True,
        **options,
    )


@pytest.fixture
def edited(monkeypatch):
    """Let check_triton run an edited text, or with an edited map of an argument."""

    def set(edit=lambda text: text, encoded=None):
        def check(text, grid, block, arguments, *rest, **named):
            changed = edit(text)
            arguments = list(arguments)
            for number, fields in (encoded or {}).items():
                given = arguments[number]
                arguments[number] = given._replace(encoded={**given.encoded, **fields})
            assert changed != text or encoded, "the fault is not planted"
            return tma.check_kernel(changed, grid, block, arguments, *rest, **named)

        monkeypatch.setattr(triton_check, "check_kernel", check)

    return set


KERNELS = {
    "product": (product, "wgmma", 24),
    "convolution": (convolution, ".im2col.", 36),
    "sums": (sums, "cp.reduce.async.bulk.tensor", 16),
    "one_more": (one_more, "tensormap.replace.tile", 8),
}


@pytest.mark.parametrize("name", KERNELS)
def test_it_is_right(name, monkeypatch):
    run, instruction, copies = KERNELS[name]
    texts = []
    check = tma.check_kernel

    def keep(text, *rest, **named):
        texts.append(text)
        return check(text, *rest, **named)

    monkeypatch.setattr(triton_check, "check_kernel", keep)
    report = run()
    assert report.problems == [] and len(report.copies) == copies
    assert all(copy.difference in ("", None) for copy in report.copies)
    assert instruction in texts[0]


COPY = r"(cp\.async\.bulk\.tensor\.2d\.shared\S+ \[[^]]+\], \[[^{]+\{)(\S+), (\S+)(\}\])"
OPERANDS = r"(im2col\S+ \[[^]]+\], \[[^]]+\], \[[^]]+\], \{)(\S+), (\S+)(\})"
DIFFER = "elements differ from those expected"


FAULTS = {  # name: (kernel, edit of its text, maps encoded otherwise, what the report names)
    "A's map lacks the swizzle": (
        "product",
        None,
        {0: {"swizzle": 0}},
        "reads swizzle 64B, but the copy wrote no swizzle; the copy is at line",
    ),
    "B's map lacks the swizzle": (
        "product",
        None,
        {5: {"swizzle": 0}},
        "reads swizzle 128B, but the copy wrote no swizzle; the copy is at line",
    ),
    "coordinates exchanged": (
        "product",
        lambda text: re.sub(COPY, r"\1\3, \2\4", text, count=1),
        None,
        DIFFER,
    ),
    "no proxy fence before the store": (
        "product",
        lambda text: text.replace("fence.proxy.async.shared::cta;", ""),
        None,
        "fence.proxy.async",
    ),
    "operands of a tap exchanged": (
        "convolution",
        lambda text: re.sub(OPERANDS, r"\1\3, \2\4", text),
        None,
        DIFFER,
    ),
    "a tensor map of one pixel row less": (
        "convolution",
        None,
        {0: {"pixelBoxLowerCorner": [-1, 0]}},
        "pixelBoxLowerCorner",
    ),
    "min in place of add": (
        "sums",
        lambda text: text.replace("shared::cta.add.", "shared::cta.min."),
        None,
        "the reduction min takes",
    ),
    "the box is half as high": ("sums", None, {0: {"boxDim": [32, 16]}}, "boxDim"),
    "globalDim is the box's": ("sums", None, {5: {"globalDim": [32, 32]}}, "globalDim"),
    "a made map that nobody acquires": (
        "one_more",
        lambda text: re.sub(r"@%p\d+ fence\.proxy\.tensormap::generic\.acquire[^;]*;", "", text),
        None,
        "with no fence.proxy.tensormap::generic.acquire",
    ),
    "a made map whose stride is in elements": (
        "one_more",
        lambda text: re.sub(r"(mul\.wide\.s32 \s*%rd\d+, %r\d+, )4;", r"\g<1>1;", text),
        None,
        DIFFER,
    ),
}


def bytes_expected(factor):
    """The text with another number of bytes that its mbarriers expect."""

    def changed(match):
        return match[1] + str(int(int(match[2]) * factor))

    return lambda text: re.sub(r"(expect_tx\S+ _, \[\S+\], )(\d+)", changed, text)


LATE = "no barrier orders it|a copy is about to write|which writes shared"
COMMON = {  # faults of each of three kernels: (edit of its text, maps, a pattern of the report)
    "fewer bytes expected": (
        bytes_expected(0.5),
        None,
        f"{LATE}|more than were expected|ends, but copies that",
    ),
    "more bytes expected": (bytes_expected(2), None, "deadlock"),
    "two arrivals expected": (
        lambda text: re.sub(r"(mbarrier\.init\S+ \[\S+\], )1", r"\g<1>2", text),
        None,
        "deadlock",
    ),
    "nobody waits": (
        lambda text: text.replace("@!complete bra.uni waitLoop;", ""),
        None,
        LATE,
    ),
    "no mbarrier": (
        lambda text: re.sub(r"@\S+ mbarrier\.init[^;]*;", "", text),
        None,
        "no mbarrier was initialised",
    ),
    "a map without its swizzle": (None, {0: {"swizzle": 0}}, "swizzle = .*must be"),
    "a map of other elements": (None, {0: {"tensorDataType": 8}}, "tensorDataType = 8"),
    "a map of a smaller tensor": (None, {0: {"globalDim": [32, 16, 2, 1]}}, "globalDim = .*must"),
    "strides in elements": (None, {0: {"globalStrides": [32, 64, 96]}}, "globalStrides = .*must"),
    "a step of 2": (None, {0: {"elementStrides": [1, 2, 1, 1]}}, "elementStrides = .*must"),
}


@pytest.mark.parametrize("name", ["product", "convolution", "sums"])
@pytest.mark.parametrize("fault", COMMON)
def test_ten_faults_of_each(name, fault, edited):
    edit, encoded, pattern = COMMON[fault]
    if encoded:
        rank = 4 if name == "convolution" else 2
        ((number, fields),) = encoded.items()
        cut = {
            field: value[: rank - (field == "globalStrides")] if isinstance(value, list) else value
            for field, value in fields.items()
        }
        encoded = {number: cut}
    edited(edit or (lambda text: text), encoded)
    problems = KERNELS[name][0]().problems
    assert any(re.search(pattern, line) for line in problems), problems


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults(fault, edited):
    name, edit, encoded, words = FAULTS[fault]
    edited(edit or (lambda text: text), encoded)
    problems = KERNELS[name][0]().problems
    assert any(words in line for line in problems), problems


def problem_of_the_convolution():
    layouts = {"layout": "NHWC", "weight_layout": "KRSC", "rank": 2}
    shapes = (N, H, W, C), (FILTERS, TAPS, TAPS, C)
    return Problem.parse(*shapes, "float16", padding=PAD, **layouts)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_exchanged_offsets_are_named_with_the_line_of_the_copy(edited, dtype):
    edited(FAULTS["operands of a tap exchanged"][1])
    said = convolution(problem=problem_of_the_convolution(), dtype=dtype).problems[1]
    assert "is what exchanged offsets give: their order in PTX is (W, H)" in said
    assert re.search(r"the copy is at line \d+ \(\S*gluon_kernels.py:34\b", said), said


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, None),
        ({"upper": PAD - TAPS + 2}, "upper_corner[h] = 0: the box holds 9 positions but must"),
        ({"pad": 0}, "not loaded: tap (1, 2)"),
    ],
)
def test_faults_of_a_convolution_are_told_by_its_problem(wrong, words):
    """The descriptor's upper corner, and starts without the padding."""
    problems = convolution(problem=problem_of_the_convolution(), **wrong).problems
    if words is None:
        assert problems == []
    else:
        assert any(words in line for line in problems), problems


def test_what_triton_encodes_is_logged(monkeypatch, tmp_path):
    """Its own code makes the driver's call, of which the last step alone is replaced."""
    import triton
    from triton.backends.nvidia import driver

    def initialise(self):
        for name in ("fill_tma_descriptor_tiled", "fill_tma_descriptor_im2col"):
            setattr(self, name, lambda *values: "made")

    monkeypatch.setattr(driver.CudaUtils, "__init__", initialise)
    monkeypatch.setattr(driver.CudaUtils, "instance", object.__new__(driver.CudaUtils), False)
    log = tmp_path / "maps.jsonl"
    tma.log_maps(log)
    tma.log_maps(log)  # logs once, not twice
    active = type("Active", (), {"utils": driver.CudaUtils()})
    monkeypatch.setattr(triton.runtime.driver, "_active", active)
    x = small(64, 96)
    meta = {"swizzle": 2, "elem_size": 2, "elem_type": 6, "block_size": [16, 32]}
    driver.make_tensordesc_arg(tiled(x, 16, 32), {**meta, "fp4_padded": False}, None)
    (record,) = map(json.loads, log.read_text().splitlines())
    map_ = tma.TiledMap(shape=x.shape, dtype=x.dtype, box=(16, 32), swizzle="64B")
    assert record["function"] == "cuTensorMapEncodeTiled"
    assert record["globalAddress"] == x.ctypes.data
    plain = {name: list(v) if isinstance(v, tuple) else v for name, v in map_.arguments.items()}
    for name in ("tensorRank", "globalDim", "globalStrides", "boxDim", "elementStrides"):
        assert record[name] == plain[name], name
    assert (record["swizzle"], record["tensorDataType"]) == (2, 6)
    assert tma.lint(**record) == []
