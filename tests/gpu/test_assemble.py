"""Every kernel on every target compiles and links, without spills, to the intended instructions.

No GPU is needed, but the compilers are; without them the tests are skipped.
"""

import importlib
import importlib.util
import itertools
import json
import re
from dataclasses import replace

import pytest

from implicit_conv.gpu.cuda.arch import KNOWN
from implicit_conv.gpu.plan import families
from implicit_conv.gpu.plan.candidate import gpu_geometry, refusal
from implicit_conv.gpu.plan.direct import direct_rule
from implicit_conv.gpu.plan.families import FAMILIES, family_name
from implicit_conv.gpu.plan.planner import variants
from implicit_conv.gpu.plan.rows import rows_rule
from implicit_conv.kernels.geometry import CLAMP, HARDSWISH
from implicit_conv.kernels.gpu import ptx, targets
from implicit_conv.kernels.gpu.intrinsic import (
    Asm,
    TargetError,
    make_intrinsic,
    numba_type,
    signature_of,
)
from implicit_conv.kernels.gpu.variant import Strip, Variant
from implicit_conv.problem.options import GPU_DTYPES
from implicit_conv.testing import Case
from implicit_conv.testing.gpu.problems import FIRST_LAYERS, problem_of
from perf import gates, gpu_gates
from perf.bringup.sass import assembled, sass, tool

WHEELS = "pip install '.[cu13,assemble]' in a checkout"
if importlib.util.find_spec("numba_cuda") is None or tool("nvdisasm") is None:
    pytest.skip(f"needs numba-cuda, nvdisasm and ptxas: {WHEELS}", allow_module_level=True)

REGISTER_LIMIT = 65536
STORES = {"packed": False}
BIAS_ALONE = {"plain": True, "residual": False}
SCALED = {"scaled": True}
SUMS = {"scaled": True, "rounded": False}
# Slow on most GPUs; a comparison of signed with unsigned integers would cause them, for example.
DOUBLE = ("DADD", "DMUL", "DFMA", "DSETP")


def plannable(number, dtype, plain=False):
    """The kernels that the planner may choose on a target.

    They add a bias and a residual.
    """
    problems = gpu_gates.problem(dtype), gpu_gates.narrow_problem(dtype)
    return [
        replace(v, biased=True, residual=True)
        for problem, narrow in zip(problems, (False, True), strict=True)
        for v in variants(problem, CLAMP, plain)
        if bool(v.strip) == narrow and not refusal(problem, KNOWN[number], v)
    ]


def family(v):
    return v.mode, v.producer, v.consumer, v.permuted, v.descriptors


def kernels():
    """(target, variant) of every kernel that the planner may choose.

    By default the largest tile of each family is linked on each target, in bfloat16 or float32. On
    the first target of each family, so are the largest tile in float16, which differs by a suffix,
    and the smallest tile. All others are exhaustive.
    """
    made, seen = [], set()
    for number in families.GENERATIONS:
        met = set()
        for dtype in GPU_DTYPES:
            able = plannable(number, dtype)
            largest = {family(v): v for v in reversed(able)}
            smallest = {family(v): v for v in able if dtype != "float16"}
            for v in able:
                new = family(v) not in seen
                quick = v == largest[family(v)] and (dtype != "float16" or new)
                quick &= not v.strip or dtype == "bfloat16" or new
                quick |= v == smallest.get(family(v)) and new
                marks = () if quick else pytest.mark.exhaustive
                made.append(pytest.param(number, v, id=f"sm_{number} {v.name}", marks=marks))
            met |= set(largest)
        seen |= met
    others = other_epilogues(), other_families(), other_strips(), first_layers(), volumes()
    return [*made, *itertools.chain(*others)]


def other_epilogues():
    """The first tile of each family with the bias alone, with a scale, with one and sums that are
    not rounded, and with stores element by element.

    By default the first three are linked on the first target of each family. The stores are the
    same code in every family, so they are linked once per target.
    """
    seen = set()
    for number in families.GENERATIONS:
        for dtype in ("bfloat16", "float32"):
            first = {family(v): v for v in reversed(plannable(number, dtype))}
            for place, v in enumerate(first.values()):
                changes = {
                    "bias alone": BIAS_ALONE,
                    "scale": SCALED,
                    "float32 y": SUMS,
                    "any output": STORES,
                }
                for name, change in changes.items():
                    if v.strip and change in (SUMS, STORES):
                        continue  # vectors are rounded, and never stored by elements
                    if dtype == "float32" and change == SUMS:
                        continue
                    again = place > 0 if change == STORES else family(v) in seen
                    yield pytest.param(
                        number,
                        replace(v, **change),
                        id=f"sm_{number} {v.name}, {name}",
                        marks=pytest.mark.exhaustive if dtype == "float32" or again else (),
                    )
            if dtype == "bfloat16":
                seen |= set(first)


def other_families():
    """Plain im2col with A in registers, which only tests use, folded columns, and short copies."""
    for number in families.GENERATIONS:
        for v in plannable(number, "bfloat16"):
            if family_name(v) == "elements-mma":
                largest = v.tile_n == 128
                yield pytest.param(
                    number,
                    replace(v, folded=True),
                    id=f"sm_{number} {v.name}, folded",
                    marks=() if largest else pytest.mark.exhaustive,
                )
    for number in families.GENERATIONS:
        for dtype in ("bfloat16", "float32"):
            for v in plannable(number, dtype):
                for size, folded in ((4, False), (8, False), (4, True), (8, True)):
                    if v.producer == "cp_async":
                        quick = v.tile_n == 128 and size == 4 and not folded
                        short = replace(v, copy_bytes=size, folded=folded)
                        yield pytest.param(
                            number,
                            short,
                            id=f"sm_{number} {short.name}",
                            marks=() if quick else pytest.mark.exhaustive,
                        )
    for v in plannable(90, "bfloat16"):
        if family_name(v) == "tma-wgmma":
            largest = v.tile_n == 256
            yield pytest.param(
                90,
                replace(v, descriptors=False),
                id=f"sm_90 {v.name}, registers",
                marks=() if largest else pytest.mark.exhaustive,
            )


def other_strips():
    """Strips of the planner with the most values in registers, and elements of any layout."""
    sizes = {"size": (28, 28), "layout": "NHWC", "weight_layout": "KRSC", "padding": ((3, 3),) * 2}
    cases = {
        "groups of 4": Case(C=4, K=4, groups=32, **sizes),
        "7x7": Case(C=1, K=1, groups=64, kernel=(7, 7), **sizes),
        "stride 2": Case(C=1, K=1, groups=64, stride=(2, 2), **sizes),
        "groups of 8": Case(C=8, K=8, groups=32, **sizes),
        "one filter for two channels": Case(C=2, K=1, groups=64, **sizes),
        "elements": Case(C=1, K=1, groups=9, **sizes),
        "planes": Case(C=1, K=1, groups=64, **{**sizes, "layout": "NCHW"}),
    }
    for name, case in cases.items():
        for number in families.GENERATIONS:
            for dtype in ("bfloat16", "float32"):
                problem = problem_of(case, dtype)
                found = variants(problem, CLAMP, plain=False)
                v = next(v for v in found if v.strip and not direct_rule(problem, v))
                quick = (name, number, dtype) in QUICK_STRIPS
                yield pytest.param(
                    number,
                    replace(v, biased=True, residual=True),
                    id=f"sm_{number} {v.name}, {name}",
                    marks=() if quick else pytest.mark.exhaustive,
                )


def first_layers():
    """Kernels by rows, of each load and on each target: the first of each layer that they know."""
    for number in families.GENERATIONS:
        for dtype in ("bfloat16", "float16"):
            for place, case in enumerate(FIRST_LAYERS):
                problem = problem_of(case, dtype)
                rows = [v for v in variants(problem, CLAMP, plain=False) if v.band]
                planes = [replace(v, producer="planes") for v in rows[:1]]
                for v in [*rows, *(v for v in planes if not rows_rule(problem, v))]:
                    quick = v == rows[0] and dtype == "bfloat16" and place == 0
                    quick |= number == 80 and dtype == "bfloat16" and v in (rows[0], *planes)
                    yield pytest.param(
                        number,
                        replace(v, biased=True, residual=True),
                        id=f"sm_{number} {v.name}",
                        marks=() if quick else pytest.mark.exhaustive,
                    )


def volumes():
    """Kernels of volumes: by default the first of each family on each target."""
    for number in families.GENERATIONS:
        seen = set()
        for dtype in ("bfloat16", "float32"):
            problem = gpu_gates.volume_problem(dtype)
            for v in variants(problem, CLAMP, plain=False):
                if refusal(problem, KNOWN[number], v):
                    continue
                again = family_name(v) in seen
                seen.add(family_name(v))
                yield pytest.param(
                    number,
                    replace(v, biased=True, residual=True),
                    id=f"sm_{number} {v.name}",
                    marks=pytest.mark.exhaustive if again else (),
                )


def grouped(cases):
    """A target's cases share device functions, which one process need not compile twice."""
    return [
        pytest.param(
            *case.values,
            id=case.id,
            marks=[*case.marks, pytest.mark.xdist_group(f"sm_{case.values[0]}")],
        )
        for case in cases
    ]


TARGETS = grouped(pytest.param(number, id=str(number)) for number in families.GENERATIONS)
QUICK_STRIPS = {("groups of 4", 80, "bfloat16"), ("elements", 90, "bfloat16")}


def test_every_row_of_the_evidence_is_linked():
    """Every family and target of the table of evidence, without the exhaustive cases. Those of
    weight gradients are linked by test_weight_grad.py.
    """
    quick = {
        (family_name(v), targets.target_name(KNOWN[number].cc))
        for number, v in (case.values for case in kernels() if not case.marks)
    }
    rungs = {(rung.family, rung.target) for rung in families.ladder()}
    assert quick == {(family, target) for family, target in rungs if family in FAMILIES}


def expected_sass(v):
    """Instructions that the kernel must contain."""
    yield {
        "mma": "HMMA.16816.F32",
        "fma": "FFMA",
        "direct": "FFMA",
        "wgmma": f"HGMMA.64x{v.tile_n}x16.F32",
        "rows": "HMMA.16816.F32",
    }[v.consumer]
    if v.band:
        yield "LDG.E.64.CONSTANT" if v.producer in ("vectors", "planes") else "LDG.E.U16.CONSTANT"
        yield "STS.64"
        yield "LDSM"
    elif v.producer == "vectors":
        yield "LDG.E.128.CONSTANT"
        yield "STG.E.128"
    if v.producer == "tma":
        axes = 5 if v.volume else 4
        yield "UTMALDG.4D.W" if v.wide and not v.permuted else f"UTMALDG.{axes}D.IM2COL"
        yield "UTMALDG.3D"
        yield "SYNCS"
    if v.producer == "cp_async":
        yield "LDGSTS"
    if v.consumer == "wgmma" and v.resident == 1:
        yield "USETMAXREG"
    if v.consumer in ("mma", "wgmma") and not v.descriptors:
        yield "LDSM"


GATES = json.loads(gates.EXPECTED.read_text())
GATED = {(v, cc): name for name, v, cc in gpu_gates.kernels()}


def test_gates_are_for_these_compilers():
    """Otherwise the kernels linked here would not be compared with the committed counts."""
    if gpu_gates.compiler() != GATES["gpu compiler"]:
        pytest.skip(f"counted for {GATES['gpu compiler']}, this is {gpu_gates.compiler()}")
    linked = {(v, KNOWN[number].cc) for number, v in (c.values for c in kernels() if not c.marks)}
    assert {(v, cc) for v, cc in GATED if isinstance(v, Variant)} <= linked


@pytest.mark.parametrize(("number", "v"), grouped(kernels()))
def test_kernel_links_without_spills(number, v):
    from implicit_conv.kernels.gpu.fprop import LAUNCH_REGISTERS

    kernel = gpu_gates.compiled(v, KNOWN[number].cc)
    assert kernel.complaints == []
    assert kernel.spills == 0 and kernel.stack == 0
    assert kernel.registers * v.threads * v.bound <= REGISTER_LIMIT
    found = sass(kernel.cubin)
    for wanted in expected_sass(v):
        assert any(name.startswith(wanted) for name in found), wanted
    assert not {name.split(".")[0] for name in found} & {"LDL", "STL"}
    assert not [name for name in found if "F64" in name or name.startswith(DOUBLE)]
    if "USETMAXREG" in expected_sass(v):
        assert kernel.registers == LAUNCH_REGISTERS  # the pool of setmaxnreg
    assert found.count("ELECT") == (v.producer == "tma")  # once, not around every tensor copy
    name = GATED.get((v, KNOWN[number].cc))
    if name and gpu_gates.compiler() == GATES["gpu compiler"]:
        assert gpu_gates.counts(kernel) == GATES["gpu"][name], (
            "meant? python -m perf gates --update"
        )


CHOICES = {
    "fragment.pack": [("bfloat16", 8), ("float16", 4), ("float32", 4)],
    "fragment.widen": [("bfloat16", 8), ("float16", 4), ("float32", 2)],
    "fragment.add": [(16,), (4,)],
    "fragment.add_columns": [(32,), (64,)],
    "fragment.scale": [(8,), (4,)],
    "fragment.scale_columns": [(32,), (64,)],
    "fragment.load": [(32,), (64,)],
    "fragment.store": [(32,), (64,)],
    "gmem.load": [(2,), (4,), (2, True), (4, True)],
    "gmem.load_pair": [(), (True,)],
    "gmem.store": [(2,), (4,)],
    "gmem.to_float": [("float16",), ("bfloat16",), ("float32",)],
    "gmem.from_float": [("float16",), ("bfloat16",), ("float32",)],
    "smem.copy_words": [(4,), (8,)],
    "smem.load_quads": [(3, 256)],
    "smem.load_columns": [(4, 32, 128)],
    "smem.ldmatrix_trans": [(2,)],
    "gmem.store_tiles": [(4,)],
    "smem.ldmatrix": [(2, 2048)],
    "smem.store_tiles": [(4, 144)],
    "vector.load": [(2,), (4,), (8,), (16,)],
    "vector.multiply": [(Strip(2, 3, 2, 1, 2, 4), 8, 16), (Strip(1, 1, 1, 1, 3, 1), 1, 1)],
    "mma.multiply": [("bfloat16", 2, 4), ("float16", 1, 2)],
    "mma.multiply_float": [(1, 2)],
    "mma.wgmma": [
        ("bfloat16", 128, 4, True, True),
        *((d, n, 4, False) for d in ("bfloat16", "float16") for n in (64, 256)),
        *(("bfloat16", n, 2, True) for n in (64, 128, 256)),
    ],
    "warp.set_registers": [("dec", 40), ("inc", 232)],
    "tma.load_im2col": [("im2col",), ("im2col::w",), ("im2col::w::128",)],
}


def hooks():
    """(name, choices) of every declared hook."""
    importlib.import_module("implicit_conv.kernels.gpu.fprop")  # which declares them
    return [(name, choice) for name in ptx.HOOKS for choice in CHOICES.get(name, [()])]


def kernel_of(name, choices):
    """A kernel that calls the hook once with its arguments and uses the results."""
    names, asm = ptx.HOOKS[name].assembly(*choices)
    hook = make_intrinsic(name, signature_of(names), asm)
    sink = make_intrinsic("sink", signature_of("value"), Asm("", asm.results))
    call = f"hook({', '.join(names.split())})"
    scope = {"hook": hook, "sink": sink}
    body = f"sink({call})" if asm.results else call
    exec(f"def kernel({', '.join(names.split())}):\n    {body}", scope)
    return scope["kernel"], [numba_type(spec) for spec in asm.operands], asm.target


def to_ptx(kernel, operands, cc):
    from numba import cuda
    from numba.cuda import types

    signature = types.void(*operands)
    return cuda.compile(kernel, signature, cc=cc, output="ptx", device=False, abi="numba")[0]


ACTIVATIONS = [
    pytest.param(number, kind, id=str(kind))
    for kind in range(HARDSWISH + 1)
    for number in [(80, 100)[kind % 2]]
]


@pytest.mark.parametrize(("number", "kind"), grouped(ACTIVATIONS))
def test_every_activation_links(number, kind):
    v = Variant("im2col", "cp_async", "mma", "bfloat16", 64, 64, 128, activation=kind, packed=True)
    from implicit_conv.kernels.gpu.blob import signature
    from implicit_conv.kernels.gpu.compile import compile_kernel
    from implicit_conv.kernels.gpu.fprop import make_fprop

    kernel = compile_kernel(make_fprop(v), signature(), KNOWN[number].cc, v.threads, v.bound)
    assert kernel.spills == 0 and kernel.stack == 0
    assert not [name for name in sass(kernel.cubin) if "F64" in name or name.startswith(DOUBLE)]


def test_targets_in_any_order():
    """Device functions are compiled again for each target, which shows in their waits."""
    from implicit_conv.kernels.gpu.blob import signature
    from implicit_conv.kernels.gpu.compile import compile_kernel
    from implicit_conv.kernels.gpu.fprop import make_fprop

    v = next(
        v
        for v in variants(gpu_gates.problem("bfloat16"), 0, plain=True)
        if v.producer == "cp_async"
    )
    for number in (90, 80, 90):
        kernel = compile_kernel(make_fprop(v), signature(), KNOWN[number].cc, v.threads, v.bound)
        waits = {name for name in sass(kernel.cubin) if "TRYWAIT" in name}
        assert bool(waits) == (number == 90)


@pytest.mark.parametrize("number", TARGETS)
def test_blob_is_the_kernels_one_argument(number):
    """It is passed by value, aligned to 64 bytes for the tensor maps, and as long as the host's."""
    from implicit_conv.kernels.gpu import blob
    from implicit_conv.kernels.gpu.call import Call, Limits, pack
    from implicit_conv.kernels.gpu.compile import offline
    from implicit_conv.kernels.gpu.fprop import make_fprop

    v = next(variants(gpu_gates.problem("bfloat16"), 0, plain=True))
    v = replace(v, mode="im2col") if number < 100 else v
    v = replace(v, producer="cp_async") if number < 90 else v
    cc = KNOWN[number].cc
    with offline(cc):
        text = to_ptx(make_fprop(v), [blob.numba_type()], cc)
    parameters = re.findall(r"\.param (.*?)\w+_param_\d+(?:\[(\d+)\])?\s*[,)]", text)
    call, limits = Call(*[0] * len(Call._fields)), Limits(0.0, 0.0)
    size = len(pack(None, None, call, gpu_geometry(gpu_gates.problem("bfloat16"), v), limits))
    assert [(kind.strip(), int(count)) for kind, count in parameters] == [(".align 64 .b8", size)]


@pytest.mark.parametrize("number", families.GENERATIONS)
def test_every_hook_assembles_where_it_exists(number):
    """ptxas assembles it; on all other targets the compiler refuses it with a message."""
    for name, choices in hooks():
        kernel, operands, target = kernel_of(name, choices)
        cc = KNOWN[number].cc
        if targets.supports(target, cc):
            assembled(to_ptx(kernel, operands, cc), targets.target_name(cc))
            continue
        with pytest.raises(TargetError, match=f"{name} needs .* compiled for sm_{number}"):
            to_ptx(kernel, operands, cc)


def test_hook_targets_are_the_least():
    """ptxas refuses a hook on the target before the one that it is documented to need."""
    earlier = {"sm_90": 80, "sm_90a+": 80, "sm_100": 90, "sm_90a": 100, "sm_100a": 120}
    for name, choices in hooks():
        _, asm = ptx.HOOKS[name].assembly(*choices)
        if asm.target == "sm_80":
            continue
        cc = KNOWN[earlier[asm.target]].cc
        kernel, operands, _ = kernel_of_any_target(name, choices)
        with pytest.raises(RuntimeError, match="ptxas failed"):
            assembled(to_ptx(kernel, operands, cc), targets.target_name(cc))


def kernel_of_any_target(name, choices):
    """The kernel of `kernel_of` without our check of the target."""
    names, asm = ptx.HOOKS[name].assembly(*choices)
    before = ptx.HOOKS[name]
    ptx.HOOKS[name] = ptx.Hook(before.function, lambda *_: (names, asm._replace(target="sm_80")))
    try:
        return kernel_of(name, choices)
    finally:
        ptx.HOOKS[name] = before
