"""Tensor maps that a kernel makes by tensormap.replace, and the fences of their proxy."""

import numpy as np
import pytest
from ptx_texts import kernel

from implicit_conv import ptx, tma
from implicit_conv.tma.check.interpreted import interpreted_map

SHARED = ".extern .shared .align 1024 .b8 smem[];"
ROWS, COLUMNS = 16, 64  # of the tensor
BOX = 8, 32  # float32 elements
REPLACE = "tensormap.replace.tile.{}.shared::cta.b1024.b{} [%r2], {};"
MADE = {  # a map of x, float32[16, 64], from zeros; fields in an order that PTX allows
    "rank": (32, "0x1"),
    "global_address": (64, "%d1"),
    "box_dim 0": (32, "0x0, 32"),
    "box_dim 1": (32, "0x1, 8"),
    "global_dim 0": (32, "0x0, 64"),
    "global_dim 1": (32, "0x1, 16"),
    "global_stride 0": (64, "0x0, %d6"),
    "element_stride 0": (32, "0x0, 1"),
    "element_stride 1": (32, "0x1, 1"),
    "elemtype": (32, "0x7"),
    "swizzle_mode": (32, "0x0"),
}
COPY_MAP = """tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned
    [%d3], [%d4], 128;"""
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%d3], 128;"
LOAD = """
    mbarrier.init.shared.b64 [%r2+2048], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r2+2048], 1024;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r2+1024], [%d3, {32, 4}], [%r2+2048];"""
BODY = """
    ld.param.u64 %d2, [y]; ld.param.u64 %d3, [place]; mov.u64 %d6, 256;
    mov.u32 %r2, smem; cvt.u64.u32 %d4, %r2;
    mov.u32 %r1, %tid.x; shl.b32 %r3, %r1, 2; add.u32 %r3, %r3, %r2; mov.u32 %r4, 0;
    INIT
    bar.warp.sync -1; setp.eq.u32 %p1, %r1, 0; @!%p1 bra MADE;
    REPLACE
    MADE: bar.warp.sync -1;
    COPY_MAP
    ACQUIRE
    bar.sync 0; @!%p1 bra READY; LOAD READY: bar.sync 0;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r2+2048], 0; @!%p2 bra WAIT;
    mul.wide.u32 %d7, %r1, 32; add.s64 %d2, %d2, %d7; shl.b32 %r5, %r1, 5; add.u32 %r5, %r5, %r2;
    ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r5+1024];
    ld.shared.v4.u32 {%r14, %r15, %r16, %r17}, [%r5+1040];
    st.global.v4.u32 [%d2], {%r10, %r11, %r12, %r13};
    st.global.v4.u32 [%d2+16], {%r14, %r15, %r16, %r17};"""
PARAMETERS = ".param .u64 x, .param .u64 y, .param .u64 place"
ZEROS = "st.shared.u32 [%r3], %r4;"


def replacements(fields):
    return "\n".join(REPLACE.format(name.split()[0], *given) for name, given in fields.items())


def text_of(fields=MADE, init=ZEROS, copy=COPY_MAP, acquire=ACQUIRE, parameters=PARAMETERS):
    body = BODY.replace("INIT", init).replace("REPLACE", replacements(fields))
    body = body.replace("COPY_MAP", copy).replace("ACQUIRE", acquire).replace("LOAD", LOAD)
    return kernel(body, parameters, shared=SHARED)


def arrays():
    x = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    return x, np.zeros(BOX, np.float32), np.zeros(128, np.uint8)


def ran(text, *more):
    x, y, place = arrays()
    ptx.run(text, 1, 32, [x, y, place, *more], shared_bytes=2056)
    return x, y


def test_a_map_made_from_zeros():
    x, y = ran(text_of())
    assert np.array_equal(y, x[4:12, 32:64])


def test_check_kernel_knows_maps_that_the_kernel_makes():
    x, y, place = arrays()
    report = tma.check_kernel(
        text_of(), 1, 32, [x, y, place], shared_bytes=2056, expected={1: x[4:12, 32:64]}
    )
    assert report.problems == []
    (copy,) = report.copies
    assert copy.argument is None and copy.start.coords == (4, 32)
    assert copy.walk.bytes == 1024 and " made " in str(report)


def test_a_map_of_the_host_gets_another_address():
    """As kernels for groups of products do: 128 bytes of a parameter, with a new tensor."""
    parameters = f"{PARAMETERS}, .param .align 64 .b8 given[128]"
    copied = "mov.b64 %d8, given; cvta.param.u64 %d8, %d8; mul.wide.u32 %d9, %r1, 4;"
    copied += "add.s64 %d8, %d8, %d9; ld.u32 %r4, [%d8]; st.shared.u32 [%r3], %r4;"
    text = text_of({"global_address": (64, "%d1")}, copied, parameters=parameters)
    other = np.full((ROWS, COLUMNS), 7, np.float32)
    map = tma.TiledMap(shape=other.shape, dtype=other.dtype, box=BOX)
    x, y = ran(text, ptx.Tensor(interpreted_map(map.arguments, 3), other))
    assert np.array_equal(y, x[4:12, 32:64])


def test_a_map_that_is_changed_in_global_memory():
    change = "fence.acq_rel.gpu; @!%p1 bra DONE; tensormap.replace.tile.global_dim.global.b1024.b32"
    change += " [%d3], 0, 48; RELEASE DONE: bar.warp.sync -1;"
    release = "fence.proxy.tensormap::generic.release.gpu;"
    x, y = ran(text_of(copy=COPY_MAP + change.replace("RELEASE", release)))
    assert np.array_equal(y, np.where(np.arange(32, 64) < 48, x[4:12, 32:64], 0))
    with pytest.raises(ptx.PtxError, match=r"no fence.proxy.tensormap::generic.release since"):
        ran(text_of(copy=COPY_MAP + change.replace("RELEASE", "")))


SIZES = ("global_dim", "element_stride")
WRONG = {  # what is left out or changed: what the error names
    "no acquire": ({"acquire": ""}, r"with no fence.proxy.tensormap::generic.acquire"),
    "acquire of another": (
        {"acquire": ACQUIRE.replace("[%d3]", "[%d1]")},
        r"with no fence.proxy.tensormap::generic.acquire",
    ),
    "replaced after the copy": (
        {"acquire": f"{ACQUIRE} {COPY_MAP}"},
        r"with no fence.proxy.tensormap::generic.acquire",
    ),
    "no copy": ({"copy": ""}, "holds no tensor map"),
    "not zeroed": ({"init": ""}, "bytes that were never written"),
    "by one lane": ({"copy": f"@%p1 {COPY_MAP}"}, "it is .aligned, but of the warp only lanes"),
    "rank last": (
        {"fields": {**{n: v for n, v in MADE.items() if n != "rank"}, "rank": MADE["rank"]}},
        "box_dim 1 of a tensor map of 1 axes: replace its .rank before",
    ),
    "five axes more": ({"fields": {**MADE, "rank": (32, "5")}}, "at most 4"),
    "stride in elements": (
        {"fields": {**MADE, "global_stride 0": (64, "0x0, 0x28")}},
        "global_stride is 40, which must be divisible by 16",
    ),
    "no box": (
        {"fields": {n: v for n, v in MADE.items() if n != "box_dim 1"}},
        "box_dim is 32, 0, which must be 1 to 256",
    ),
    "a wide row": (
        {"fields": {**MADE, "swizzle_mode": (32, "2")}},
        "swizzle_mode is 64, which is less than the 128 bytes of a row",
    ),
    "a box of 2 GiB": (
        {
            "fields": {
                **MADE,
                "rank": (32, "0x4"),
                **{f"box_dim {n}": (32, f"{n}, 256") for n in (1, 2, 3)},
                **{f"{what} {n}": (32, f"{n}, 1") for what in SIZES for n in (2, 3, 4)},
                "box_dim 4": (32, "4, 1"),
                **{f"global_stride {n}": (64, f"{n}, 16") for n in (1, 2, 3)},
            }
        },
        "has 2147483648 bytes, a block",
    ),
    "96 bytes": ({"fields": {**MADE, "swizzle_mode": (32, "4")}}, "swizzle_mode by 4 is not cov"),
    "no ordinal": ({"fields": {**MADE, "box_dim": (32, "8")}}, "not covered: 2 operands"),
    "a field that none has": (
        {"fields": {**MADE, "height": (32, "8")}},
        "height.shared::cta.b1024.b32 is not cov",
    ),
    "64 bytes": ({"acquire": ACQUIRE.replace("128", "64")}, "a size other than 128"),
}


@pytest.mark.parametrize("what", WRONG)
def test_faults(what):
    changed, words = WRONG[what]
    with pytest.raises((ptx.PtxError, ptx.UnsupportedError), match=words):
        ran(text_of(**changed))
