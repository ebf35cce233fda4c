"""Which targets have which forms of a tensor load, as ptxas takes and refuses them."""

import numpy as np
import pytest
from ptx_texts import kernel

from implicit_conv import ptx, tma
from implicit_conv.ptx.check import check_text

LOAD = (
    "mov.b64 %d2, a; mov.u32 %r2, 0; cp.async.bulk.tensor.4d.{}.global.{}"
    ".mbarrier::complete_tx::bytes [%r2], [%d2, {{0, 0, 0, 0}}], [%r2]{};"
)
PREFETCH = "mov.b64 %d2, a; cp.async.bulk.prefetch.tensor.4d.L2.global.{} [%d2, {{0, 0, 0, 0}}]{};"
WIDE, OFFSETS = ", {1, 0}", ", {0, 0}"
FAMILY = {"sm_100a", "sm_100f", "sm_103a", "sm_110a"}
TARGETS = {"sm_80", "sm_90", "sm_90a", "sm_100", "sm_120", "sm_120a", "sm_121f", *FAMILY}
LATER = TARGETS - {"sm_80"}
BLACKWELL = LATER - {"sm_90", "sm_90a"}
FORMS = [  # an instruction, and the targets that have it
    (LOAD.format("shared::cta", "tile", ""), LATER),
    (LOAD.format("shared::cluster", "tile", ""), LATER),
    (LOAD.format("shared::cluster", "im2col", OFFSETS), LATER),
    (LOAD.format("shared::cta", "im2col::w", WIDE), BLACKWELL),
    (LOAD.format("shared::cluster", "im2col::w", WIDE), FAMILY),
    (LOAD.format("shared::cta", "im2col::w::128", WIDE), FAMILY),
    (PREFETCH.format("tile", ""), LATER),
    (PREFETCH.format("im2col::w", WIDE), FAMILY),
]


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize(("text", "targets"), FORMS)
def test_a_load_that_the_target_lacks_is_refused(text, targets, target):
    found = list(check_text(kernel(text, ".param .align 64 .b8 a[128]", target=target)))
    if target in targets:
        assert found == []
    else:
        (line,) = found
        assert f"not on {target}" in line and line.startswith("line ")


WIDE_MAP = tma.Im2colWideMap(
    shape=(2, 4, 4, 64), dtype="float16", lower_corner_w=-1, upper_corner_w=0, channels_per_pixel=64
)


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize(
    ("mode", "direction", "targets"),
    [
        ("w", "load", BLACKWELL),
        ("w", "multicast", FAMILY),
        ("w", "prefetch", FAMILY),
        ("w128", "load", FAMILY),
    ],
)
def test_lint_knows_the_targets(mode, direction, targets, target):
    map = {**WIDE_MAP.arguments, "mode": mode}
    found = tma.lint(map, direction=direction, arch=target)
    if target in targets:
        assert found == []
    else:
        (finding,) = found
        assert (finding.field, finding.severity) == ("mode", "error")
        assert f"not on {target}" in finding.allowed


def test_lint_refuses_a_target_that_is_none():
    with pytest.raises(ValueError, match="'hopper' is no target; sm_90a is"):
        tma.lint(WIDE_MAP, arch="hopper")


def test_check_kernel_refuses_what_ptxas_does():
    """im2col::w under .target sm_90a."""
    text = kernel(FORMS[3][0], ".param .align 64 .b8 a[128]", target="sm_90a")
    x = np.zeros(WIDE_MAP.shape, WIDE_MAP.dtype)
    report = tma.check_kernel(text, 1, 32, [tma.MapArgument(WIDE_MAP, x)])
    assert "sm_100 or later, not on sm_90a" in report.error


def test_prefetches_are_hints():
    body = f"""{PREFETCH.format("tile", "")}
        mov.b64 %d3, a; cp.async.bulk.prefetch.L2.global [%d3], 128;
        cp.async.bulk.prefetch.L2.global.L2::cache_hint [%d3], 128, %d3;"""
    map = ptx.TensorMap("tile", 4, 0, (8, 4, 4, 2), (32, 128, 512), (1,) * 4, box=(8, 1, 1, 1))
    arguments = [ptx.Tensor(map, np.zeros((2, 4, 4, 8), np.float32))]
    report = ptx.run(kernel(body, ".param .align 64 .b8 a[128]"), 1, 32, arguments)
    assert report.instructions > 4


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cp.async.bulk.prefetch.L2.shared [%d1], 128;", "cp.async.bulk.prefetch.L2.shared"),
        ("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%d1, {0}];", "1 coordinates for 2d"),
        ("cp.async.bulk.scatter [%d1];", "cp.async.bulk.scatter is not covered"),
        (
            "cp.async.bulk.tensor.4d.shared::cta.global.im2col.mbarrier::complete_tx::bytes"
            " [%r1], [%d1, {0, 0, 0, 0}], [%r1], {65537, 0};",
            "65537 does not fit in 16 bits",
        ),
    ],
)
def test_what_is_wrong_is_named_and_the_rest_is_checked(text, words):
    found = list(check_text(kernel(f"{text} tcgen05.wait::ld.sync.aligned;")))
    assert len(found) == 2 and words in found[0] and "tcgen05" in found[1], found
