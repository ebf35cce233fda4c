"""Plans for GPUs that this machine lacks: choices, refusals, and the text of explain()."""

from dataclasses import replace

import pytest

from implicit_conv import plan_conv2d
from implicit_conv.errors import DTypeError, PlanError
from implicit_conv.gpu.cuda.arch import KNOWN, gpu_arch
from implicit_conv.gpu.plan.candidate import consider, gpu_geometry
from implicit_conv.gpu.plan.explain import explain
from implicit_conv.gpu.plan.layout import shared_layout
from implicit_conv.gpu.plan.planner import choose
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.problem.options import GPU_DTYPES
from implicit_conv.problem.problem import Problem
from implicit_conv.process import cache

LAYER = {"padding": 1, "layout": "NHWC", "weight_layout": "KRSC"}


def layer(device, size=56, channels=64, dtype="bfloat16", batch=256, **changes):
    return plan_conv2d(
        (batch, size, size, channels),
        (channels, 3, 3, channels),
        dtype,
        device=device,
        **{**LAYER, **changes},
    )


def reason(made, **fields):
    """The reason of the first candidate with these fields; empty if it was not refused."""
    found = [
        c.reason
        for c in made.candidates
        if all(getattr(c.variant, name) == value for name, value in fields.items())
    ]
    assert found
    return found[0]


@pytest.mark.parametrize(
    ("device", "producer", "consumer"),
    [
        ("sm_80", "cp_async", "mma"),
        ("sm_89", "cp_async", "mma"),
        ("sm_90", "tma", "wgmma"),
        ("sm_90a", "tma", "wgmma"),
        ("sm_100", "tma", "mma"),
        ("sm_103", "tma", "mma"),
        ("sm_120", "tma", "mma"),
        ("sm_121", "tma", "mma"),
    ],
)
def test_each_generation_has_its_kernel(device, producer, consumer):
    v = layer(device, channels=256).engine.variant
    assert (v.producer, v.consumer) == (producer, consumer)


def test_wide_rows_take_im2col_w_and_small_images_do_not():
    """im2col::w loads a row once for all its taps; at 7 pixels its junk slots cost more."""
    assert layer("sm_100", size=112).engine.variant.mode == "w"
    assert layer("sm_100", size=7, channels=512).engine.variant.mode == "im2col"


@pytest.mark.parametrize(
    ("channels", "size", "mode", "tile_n"),
    [(64, 56, "w", 64), (128, 28, "im2col", 128), (512, 7, "im2col", 128)],
)
def test_sm_90_gets_the_kernel_that_was_fastest_on_an_h200(channels, size, mode, tile_n):
    """As measured on 3x3 layers of ResNet-50, 256 images of bfloat16 (docs/how-to/gpu.md)."""
    v = layer("sm_90", size, channels).engine.variant
    assert (v.mode, v.tile_n, v.descriptors) == (mode, tile_n, True)


def test_tiles_on_cuda_cores_hold_lines_of_their_pixels():
    """144 channels are nine tiles of 16, without junk, but each would move whole lines: on an H100
    tiles of 64 took 309 us and those of 16 took 590.
    """
    plan = plan_conv2d(
        (256, 56, 56, 144), (144, 3, 3, 1), "bfloat16", device="sm_90", groups=144, **LAYER
    )
    assert plan.engine.variant.tile_n == 64


def test_a_single_tap_takes_plain_im2col():
    """im2col::w has nothing to share between taps, and was slower on every 1x1 layer."""
    plan = plan_conv2d(
        (256, 56, 56, 64), (256, 1, 1, 64), "bfloat16", device="sm_90",
        layout="NHWC", weight_layout="KRSC",
    )  # fmt: skip
    assert plan.engine.variant.mode == "im2col"


def test_refusals_give_their_reason():
    made = layer("sm_80")
    assert reason(made, mode="w", consumer="mma") == "needs sm_100 or later"
    assert reason(made, consumer="wgmma") == "needs sm_90a and no other"
    grouped = plan_conv2d(
        (2, 9, 9, 32), (32, 3, 3, 16), "float16", device="sm_90", groups=2, **LAYER
    )
    assert reason(grouped, producer="tma", consumer="mma", mode="im2col").startswith(
        "a tensor map covers one group, but the problem has 2"
    )
    odd = plan_conv2d((2, 9, 9, 9), (8, 3, 3, 9), "float16", device="sm_90", **LAYER)
    assert odd.engine.variant.producer == "elements"
    assert "18 bytes of channels" in reason(odd, producer="cp_async")
    strided = layer("sm_100", stride=9)
    assert "traversal_stride" in reason(strided, mode="w", consumer="mma")


@pytest.mark.parametrize(
    ("channels", "groups", "dtype", "size"),
    [
        (100, 1, "bfloat16", 8),
        (50, 1, "float16", 4),
        (100, 5, "bfloat16", 8),
        (100, 50, "float16", 4),
        (101, 1, "float32", 4),
        (102, 1, "float32", 8),
    ],
)
def test_channels_that_16_bytes_do_not_divide_are_copied_4_or_8_at_a_time(
    channels, groups, dtype, size
):
    """Copies are far faster than elements; a filter row of them is one load where it can be."""
    made = plan_conv2d(
        (32, 56, 56, channels), (channels, 3, 3, channels // groups), dtype,
        device="sm_90", groups=groups, **LAYER,
    )  # fmt: skip
    words = [c for c in made.candidates if c.variant.copy_bytes == size and c.estimate]
    elements = [c for c in made.candidates if c.variant.producer == "elements" and c.estimate]
    assert 2 * min(c.cycles for c in words) < min(
        c.cycles for c in elements if c.variant.consumer != "direct"
    )
    assert {c.variant.folded for c in words} == ({True, False} if groups == 1 else {False})
    if groups < 50:  # the CUDA cores multiply groups of few channels
        assert made.engine.variant.copy_bytes == size
        assert f"loaded {size} bytes at a time" in made.explain()
        assert f"{size}-byte cp.async" in made.explain()


def test_channels_first_memory_is_supported_and_said_to_be_slower():
    problem = Problem.parse((2, 64, 9, 9), (64, 64, 3, 3), "bfloat16", dtypes=GPU_DTYPES)
    made = choose(problem, gpu_arch("sm_90"))
    assert made.variant.producer == "elements"
    assert "element by element" in explain(made)
    assert "NCHW, KCRS" in reason(made, producer="tma", consumer="mma", mode="im2col")


def test_a_plan_is_for_channels_last_memory_whatever_axes_are_called():
    last = layer("sm_90")
    shapes = (256, 64, 56, 56), (64, 64, 3, 3)
    first = plan_conv2d(*shapes, "bfloat16", padding=1, device="sm_90")
    assert first.engine.variant == last.engine.variant
    assert first.engine.choice.view == last.engine.choice.view
    assert first.problem.layout == "NCHW"
    assert "memory is channels-last" in first.explain()
    assert "memory is channels-last" not in last.explain()


def test_explain_shows_the_choice_and_the_others():
    text = layer("sm_100").explain()
    for words in (
        "sm_100a (B200: 148 multiprocessors)",
        "a k-block has",
        "junk",
        "shared",
        "refused",
        "not yet run on hardware",
        "needs sm_90a and no other",
        "slots",
    ):
        assert words in text


def test_demands_that_a_gpu_cannot_meet_are_refused():
    with pytest.raises(
        PlanError, match="'winograd_f2' runs on the CPU alone; a GPU supports 'auto'"
    ):
        layer("sm_90", algorithm="winograd_f2")
    with pytest.raises(PlanError, match="algorithm 'fft' does not exist"):
        layer("sm_90", algorithm="fft")
    with pytest.raises(PlanError, match="precision 'exact' is none of strict, standard, fast"):
        layer("sm_90", precision="exact")
    with pytest.raises(DTypeError, match="out_dtype float64: on a GPU y is float32, or has the"):
        layer("sm_90", out_dtype="float64")
    assert layer("sm_90", dtype="float32", out_dtype="float32", algorithm="implicit_gemm")


def test_strict_keeps_one_order_of_sums():
    """Sums run over taps, channel blocks and steps of 16, for every batch size, tile and loader."""
    for device in ("sm_80", "sm_90", "sm_120"):
        for batch in (1, 64):
            v = layer(device, batch=batch, precision="strict").engine.variant
            assert (v.mode, v.consumer, v.tile_c) == ("im2col", "mma", 64)
    assert "one order of sums" in reason(layer("sm_90", precision="strict"), consumer="wgmma")


def test_no_channels_are_left_to_the_kernel_that_copies_elements():
    made = plan_conv2d((1, 9, 9, 0), (8, 3, 3, 0), "float16", device="sm_90", **LAYER)
    assert made.engine.variant.producer == "elements"
    assert reason(made, producer="cp_async") == "there are no channels to copy"


def test_the_owner_of_plans_keeps_and_drops_them():
    cache.clear()
    made = layer("sm_90")
    assert layer("sm_90").engine is made.engine and len(cache.PLANS) == 1
    cache.clear()
    assert len(cache.PLANS) == 0 and layer("sm_90").engine is not made.engine


def test_a_plan_says_what_it_moves():
    made = layer("sm_90", batch=2)
    x = 2 * 56 * 56 * 64
    assert (made.workspace_bytes, made.bytes) == (0, 2 * (2 * x + 9 * 64 * 64))
    assert made.packed_bytes == 2 * 9 * 64 * 64
    assert made.peak_bytes == 2 * (x + 9 * 64 * 64)
    assert made.flops == 2 * x * 9 * 64


def test_shared_memory_bounds_the_stages():
    v = Variant("im2col", "tma", "mma", "bfloat16", 128, 128, 128, 2, 4)
    problem = layer("sm_120").problem
    small = consider(problem, replace(gpu_arch("sm_120"), smem_bytes=60 << 10), v, strict=False)
    assert "two stages do not fit 61440 bytes" in small.reason
    for number, arch in KNOWN.items():
        made = layer(f"sm_{number}")
        layout = made.engine.choice.layout
        assert layout.total <= arch.smem_bytes
        assert min(layout.a_stages, layout.b_stages) >= 2


def test_layout_regions_do_not_overlap():
    v = Variant("w", "tma", "mma", "bfloat16", 128, 64, 128, 4, 2)
    made = layer("sm_100", stride=2)
    layout = shared_layout(v, gpu_geometry(made.problem, v), 227 << 10)
    assert layout.a_stage == 2 * layout.a_buffer  # stride 2: two phase buffers
    assert layout.a_load == (129 + 128) * 128  # rows of the two buffers, with 1 and 0 halo rows
    assert layout.b_at == layout.a_stages * layout.a_stage
    assert layout.staging_at == layout.b_at + layout.b_stages * layout.b_stage
    assert layout.rows_at <= layout.barriers_at < layout.total
    assert all(at % 1024 == 0 for at in (layout.a_buffer, layout.b_at, layout.b_stage))


def test_devices_and_dtypes_that_are_not_supported():
    with pytest.raises(PlanError, match="before sm_80 lack asynchronous copies"):
        gpu_arch("sm_75")
    with pytest.raises(PlanError, match=r"device 'tpu' is none of None, 'cpu', .* one of sm_80"):
        layer("tpu")
    with pytest.raises(PlanError, match="device 'tpu' is not a target; name one of sm_80"):
        gpu_arch("tpu")
    with pytest.raises(DTypeError, match=r"dtype int8 is not (served|supported)"):
        layer("sm_90", dtype="int8")


def test_impossible_variants_are_refused_with_the_rule():
    with pytest.raises(ValueError, match="wgmma takes whole warpgroups"):
        Variant("im2col", "tma", "wgmma", "bfloat16", 96, 64, 128, 6, 1)
    with pytest.raises(ValueError, match="float32 is multiplied by fma"):
        Variant("im2col", "tma", "mma", "float32", 64, 64)
    with pytest.raises(ValueError, match="the w walk is loaded by tensor copies"):
        Variant("w", "cp_async", "mma", "bfloat16", 64, 64)
    with pytest.raises(ValueError, match=r"less than 16 by cp\.async alone; not 8"):
        Variant("im2col", "tma", "mma", "bfloat16", 64, 64, copy_bytes=8)
    with pytest.raises(ValueError, match=r"by cp\.async alone; not 2"):
        Variant("im2col", "cp_async", "mma", "bfloat16", 64, 64, copy_bytes=2)
