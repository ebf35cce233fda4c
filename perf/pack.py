"""``perf pack``: pack a bring-up kit, for which `perf.bringup` needs a GPU.

Kernels are compiled here, and every launch is written down. No GPU is needed.
"""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv import tma
from implicit_conv.gpu.cuda.arch import GpuArch, gpu_arch
from implicit_conv.gpu.cuda.cubin import compiler_versions, cubin
from implicit_conv.gpu.cuda.encode import L2_PROMOTION
from implicit_conv.gpu.plan.candidate import Choice
from implicit_conv.gpu.plan.families import FAMILIES
from implicit_conv.gpu.plan.layout import buffers, region_names
from implicit_conv.gpu.plan.maps import activation_map, filter_map
from implicit_conv.gpu.plan.planner import choose
from implicit_conv.gpu.plan.views import stacked
from implicit_conv.gpu.run.launch import NOWHERE, DeviceArray, arguments
from implicit_conv.kernels import sources
from implicit_conv.kernels.geometry import Geometry
from implicit_conv.kernels.gpu.call import Call, Limits, pack
from implicit_conv.kernels.gpu.compile import Kernel
from implicit_conv.kernels.gpu.sizes import (
    DUMP_DATA_AT,
    DUMP_THREADS,
    SWIZZLE_ATOM_BYTES,
    VECTOR_BYTES,
)
from implicit_conv.kernels.gpu.targets import supports
from implicit_conv.kernels.gpu.variant import Variant
from implicit_conv.problem.options import contiguous_strides
from implicit_conv.testing import Case
from implicit_conv.testing.gpu.check_copies import copies_on
from implicit_conv.testing.gpu.problems import (
    dump_call,
    family_problems,
    problem_of,
    production_problems,
    with_epilogue,
)
from implicit_conv.tma.maps.tiled import TiledMap
from perf.bringup.interpret import kernel_ptx, ptx_of
from perf.bringup.kit import Image, Kit, Launch, read
from perf.bringup.recipes import Problem
from perf.bringup.sass import assembled
from perf.bringup.watchdog import with_watchdog
from perf.layers import layers

Array = NDArray[Any]
NOTHING = Geometry(*[0] * len(Geometry._fields))
PROBE_ROWS, PROBE_SHIFTS = 96, range(17)
COMPARED = (("bfloat16", 256), ("float16", 32))
ENTRY = re.compile(r"\.visible \.entry (\w+)")
# Layers whose maps are encoded and whose kernels are timed, by their names in `layers`.
NETWORKS = {
    "ResNet-50": [*layers("resnet50")],
    "VGG-16": [*layers("vgg")][1:],
    "U-Net": ["3x3 64-64 @570", "3x3 64-128 @284", "3x3 512-1024 @32", "3x3 1024-512 @56"],
    # Depthwise layers of MobileNetV2 and ConvNeXt-T, and groups of ResNeXt-50.
    "narrow groups": [
        *("3x3 dw 32 @112", "3x3/2 dw 96 @112", "3x3 dw 144 @56", "3x3 dw 576 @14"),
        *("7x7 dw 96 @56", "7x7 dw 768 @7", "3x3 128-128 g32 @56", "3x3 256-256 g32 @28"),
    ],
    "tiny": ["3x3 64-64 @8"],  # for a rehearsal
}


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = commands.add_parser("pack", help="compile GPU kernels and write a bring-up kit")
    parser.add_argument("file", type=Path)
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--problems", type=int, default=20, help="of each kernel")
    parser.add_argument("--only", default="", help="regular expression of kernel names")
    parser.add_argument("--small", action="store_true", help="small tiles and layers: to rehearse")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="for `perf.bringup compare`: the kernels that ResNet-50 runs, in bfloat16 with 256 "
        "images and in float16 with 32, and those that it asks for through torch, which is needed",
    )
    parser.add_argument(
        "--before", type=Path, help="a kit that another checkout packed, whose layers go along"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the kit; exit status 0."""
    contents = Contents(options.target, options.problems, options.small, options.only)
    if options.compare:
        contents = replace(
            contents, networks=("ResNet-50",), sizes=COMPARED, kernels=1, others=False
        )
        contents = replace(contents, door="ResNet-50")
    if options.small:
        contents = replace(contents, networks=("tiny",), sizes=(("bfloat16", 2),))
        contents = replace(contents, door=contents.door and "tiny")
    kit = packed_kit(contents)
    if options.before:
        add_before(kit, read(options.before))
    size = kit.save(options.file)
    kernels = len(kit.images) + len(kit.door)
    print(f"{options.file}: {size} bytes, {kernels} kernels, {len(kit.launches)} launches")
    return 0


@dataclass(frozen=True)
class Contents:
    """What a kit holds."""

    target: str = "sm_90a"
    problems: int = 20  # random ones of each kernel
    small: bool = False  # small tiles of the families, not the planner's: for a rehearsal
    only: str = ""  # regular expression of the kernels whose problems are packed
    networks: Sequence[str] = ("ResNet-50", "narrow groups")  # whose layers are timed
    sizes: Sequence[tuple[str, int]] = (("bfloat16", 256),)  # dtypes and images of these
    kernels: int = 6  # of a layer, the best by their estimates
    others: bool = True  # problems of kernels too that no layer is timed with
    door: str = ""  # the network whose kernels torch's door asks for


def packed_kit(contents: Contents) -> Kit:
    """The kit with these contents."""
    arch = gpu_arch(contents.target)
    about = {
        **asdict(contents),
        "target": arch.target,
        "kernel sources": sources.kernels_hash(),
        "compilers": compiler_versions(),
    }
    kit = Kit(about)
    _pack_maps(kit, arch)
    _pack_copies(kit, arch)
    _pack_probes(kit, arch)
    for network in contents.networks:
        for dtype, images in contents.sizes:
            _pack_layers(kit, arch, cases(network, dtype, images), contents.kernels)
    if contents.door:
        _pack_door(kit, arch, contents.door)
    _pack_problems(kit, arch, contents)
    return kit


def add_before(kit: Kit, before: Kit) -> None:
    """Add the layers of a kit that another checkout packed, as those of step "before"."""
    kit.about["before"] = before.about
    for launch in before.of_step("rates"):
        image = f"before-{launch.image}"
        kit.images[image] = before.images[launch.image]
        for kind in ("ptx", "cubin"):
            kit.files[f"{kind}/{image}"] = before.files[f"{kind}/{launch.image}"]
        kit.launches.append(replace(launch, step="before", image=image))


def cases(network: str, dtype: str, images: int) -> Iterator[tuple[str, Case]]:
    """(name, case) of the layers of one of `NETWORKS`, with channels-last arrays."""
    every = layers("all", "NHWC", images)
    for name in NETWORKS[network]:
        yield f"{network} {name}", replace(every[name], weight_layout="KRSC", dtype=dtype)


def _image(
    kit: Kit, title: str, text: str, threads: int, linked: tuple[bytes, str] | None = None
) -> str:
    """The key of a kernel; without `linked`, it gets a watchdog and is assembled here.

    `linked` is its (image, entry), compiled apart from `text` with another name of the entry.
    """
    for key, image in kit.images.items():
        if kit.files[f"ptx/{key}"] == text.encode() and image.watchdog == (linked is None):
            return key
    key = f"k{len(kit.images)}"
    (entry,) = ENTRY.findall(text)
    linked_image, name = linked or (_watched(text, entry, kit.about["target"]), entry)
    kit.images[key] = Image(title, name, linked is None, threads)
    kit.files[f"ptx/{key}"] = text.encode()
    kit.files[f"cubin/{key}"] = linked_image
    return key


def _watched(text: str, entry: str, target: str) -> bytes:
    """The cubin of a kernel with a watchdog, which must not make ptxas drop what it relies on."""
    cubin, log = assembled(with_watchdog(text), target)
    complaints = Kernel(cubin, entry, log).complaints
    if complaints:
        raise ValueError(f"{entry} with a watchdog: {complaints}")
    return cubin


def _promoted(map: Any, array: str) -> dict[str, Any]:
    """The arguments of a map whose tensor is an array of the launch."""
    return {**map.arguments, "l2Promotion": L2_PROMOTION, "globalAddress": array}


def _pack_maps(kit: Kit, arch: GpuArch) -> None:
    """The maps of all kernels that load layers of networks by tensor copies."""
    seen = set()
    for network in ("ResNet-50", "VGG-16", "U-Net"):
        for name, case in cases(network, "bfloat16", 32):
            for candidate in choose(problem_of(case, "bfloat16"), arch).candidates:
                v = candidate.variant
                if v.producer != "tma" or candidate.layout is None:
                    continue
                for made in (activation_map(candidate.view, v), filter_map(candidate.view, v)):
                    given = _promoted(made, "x")
                    if repr(given) not in seen:
                        seen.add(repr(given))
                        kit.maps.append((f"{name}, {v.name}, {given['function']}", given))


def _pack_copies(kit: Kit, arch: GpuArch) -> None:
    """Single copies of random bits, whose bytes implicit_conv.tma tells."""
    for number, copy in enumerate(copies_on(arch.cc)):
        memory, x = copy.tensor(np.random.default_rng(number))
        operands = copy.coords, 0, copy.offsets, copy.halo, copy.offset
        expected = tma.smem_image(copy.map, x, *operands).bytes
        files = {"x": kit.keep(f"data/copy{number}-x", memory)}
        title = f"dump of a copy, {copy.mode}"
        kit.launches.append(
            Launch(
                step="copies",
                name=copy.name,
                image=_image(kit, title, _dump_ptx(copy.mode, arch), DUMP_THREADS),
                grid=1,
                shared_bytes=DUMP_DATA_AT + -(-expected.size // 512) * 512,
                blob=pack(None, None, dump_call(copy, 0, expected.size), NOTHING, Limits(0, 0)),
                maps=(_promoted(copy.map, "x"), None),
                arrays=_arrays(x=memory.nbytes, y=expected.size),
                recipe={
                    "kind": "files",
                    "shows": "units",
                    "arrays": files,
                    "expected": kit.keep(f"data/copy{number}-y", expected),
                },
                regions={0: "the barrier"},
            )
        )


@functools.cache
def _dump_ptx(mode: str, arch: GpuArch) -> str:
    from implicit_conv.kernels.gpu.dump import make_dump

    return kernel_ptx(make_dump(mode), arch.cc, DUMP_THREADS)


def _arrays(**sizes: int) -> dict[str, dict[str, int]]:
    return {name: {"bytes": size, "offset": 0} for name, size in sizes.items()}


def _pack_probes(kit: Kit, arch: GpuArch) -> None:
    """Views of A that start at any row, by descriptors and by ldmatrix."""
    if not supports("sm_90a", arch.cc):
        return
    from implicit_conv.kernels.gpu.probe import make_probe

    for row_bytes in (128, 64):
        for descriptors in (False, True):
            v = Variant(
                "im2col", "tma", "wgmma", "bfloat16", 64, 64, row_bytes, 4, 1, False, descriptors
            )
            text = kernel_ptx(make_probe(v), arch.cc, 128)
            way = "descriptor" if descriptors else "ldmatrix"
            image = _image(kit, f"probe of views by {way}, {row_bytes}B", text, 128)
            for shift in PROBE_SHIFTS:
                name = f"{way}, {row_bytes}B rows, from row {shift}"
                kit.launches.append(_probe(kit, v, image, name, shift))


def _probe(kit: Kit, v: Variant, image: str, name: str, shift: int) -> Launch:
    """Even columns of A hold their row and odd ones their column, so y tells where each was."""
    columns = v.tile_c
    row, column = np.indices((PROBE_ROWS, columns))
    a = np.where(column % 2 == 0, row, column).astype(np.float32)
    b = np.eye(64, columns, dtype=np.float32)
    y = np.zeros((64, 64), np.float32)
    y[:, :columns] = a[shift : shift + 64]
    maps = [
        TiledMap(
            shape=(rows, 1, columns),
            dtype="uint16",
            box=(rows, 1, columns),
            swizzle=f"{v.row_bytes}B",
        )
        for rows in (PROBE_ROWS, 64)
    ]
    loads = [rows * v.row_bytes for rows in (PROBE_ROWS, 64)]
    staging = 2 * 12 * SWIZZLE_ATOM_BYTES
    at = {"a_at": 0, "b_at": 12 * SWIZZLE_ATOM_BYTES, "staging_at": staging}
    barrier = staging + 16 * SWIZZLE_ATOM_BYTES
    fields: dict[str, int] = {**dict.fromkeys(Call._fields, 0), **at, "barriers_at": barrier}
    fields |= {"x_w": shift * v.row_bytes, "a_load": loads[0], "b_load": loads[1]}
    bits = {
        which: kit.keep(
            f"data/probe{v.row_bytes}-{which}", (array.view(np.uint32) >> 16).astype(np.uint16)
        )
        for which, array in (("x", a), ("w", b))
    }
    return Launch(
        step="descriptors",
        name=name,
        image=image,
        grid=1,
        shared_bytes=barrier + 16,
        blob=pack(None, None, Call(**fields), NOTHING, Limits(0, 0)),
        maps=(_promoted(maps[0], "x"), _promoted(maps[1], "w")),
        arrays=_arrays(x=loads[0], w=loads[1], y=y.nbytes),
        recipe={
            "kind": "files",
            "shows": "products",
            "shape": y.shape,
            "arrays": bits,
            "expected": kit.keep(f"data/probe{v.row_bytes}-y{shift}", y),
        },
        regions={barrier: "the barrier"},
    )


def _problems(arch: GpuArch, contents: Contents) -> Iterator[tuple[Case, Choice]]:
    if not contents.small:
        yield from production_problems(arch, contents.problems, seed=1)
        return
    for family in FAMILIES.values():
        if supports(family.target, arch.cc):
            yield from family_problems(family, contents.problems, 1, arch)


def _pack_problems(kit: Kit, arch: GpuArch, contents: Contents) -> None:
    """Random problems; every second one of a kernel has a residual."""
    timed = {launch.name.partition(", ")[2] for launch in kit.of_step("rates")}
    for number, (case, made) in enumerate(_problems(arch, contents)):
        v = made.variant
        if not re.search(contents.only, v.name) or not (contents.others or v.name in timed):
            continue
        residual = number % 2 == 1
        choice = with_epilogue(made, biased=True, residual=residual)
        # Kernels on the CUDA cores and by rows have no barriers to wait for, and so no watchdog.
        linked = cubin(choice.variant, arch.cc) if v.strip or v.band else None
        title = f"{v.name}{'' if v.packed else ', unpacked'}{', residual' if residual else ''}"
        title = f"{title}, watched" if linked is None else title
        image = _image(kit, title, ptx_of(choice.variant, arch.cc), v.threads, linked)
        problem = Problem(case, v.dtype, number, residual)
        recipe = {**problem.recipe(), "tile": (v.tile_m, v.tile_n, v.tile_c)}
        sizes = {name: array.size * v.itemsize for name, array in problem.values().items()}
        kit.launches.append(
            _launch("problems", f"{v.name}, problem {number}", choice, image, sizes, recipe)
        )


def _launch(
    step: str, name: str, choice: Choice, image: str, sizes: dict[str, int], recipe: dict[str, Any]
) -> Launch:
    """The launch of a choice on packed arrays."""
    v, view = choice.variant, choice.view
    shapes = {
        "x": stacked(view.input_shape, view.layout),
        "w": stacked(view.weight_shape, view.weight_layout),
        "y": stacked(view.output_shape, view.layout),
    }
    strides = {what: contiguous_strides(shape, v.itemsize) for what, shape in shapes.items()}
    x, w, y = (DeviceArray(0, strides[what]) for what in ("x", "w", "y"))
    residual = DeviceArray(0, strides["y"]) if "residual" in sizes else NOWHERE
    call = arguments(choice, x, w, y, residual=residual)
    maps: tuple[dict[str, Any] | None, dict[str, Any] | None] = (None, None)
    if v.producer == "tma":
        maps = _promoted(activation_map(view, v), "x"), _promoted(filter_map(view, v), "w")
    output_bytes = int(np.prod(view.output_shape)) * v.itemsize
    arrays = _arrays(**{**sizes, "y": output_bytes})
    if v.alignment < VECTOR_BYTES:
        for what in ("x", "w"):
            arrays[what]["offset"] = v.alignment
    return Launch(
        step=step,
        name=name,
        image=image,
        grid=choice.blocks,
        shared_bytes=choice.layout.total,
        blob=pack(None, None, call, choice.geometry, choice.limits),
        maps=maps,
        arrays=arrays,
        recipe=recipe,
        regions=region_names(choice.layout, buffers(v, choice.geometry)),
    )


def _pack_layers(kit: Kit, arch: GpuArch, named: Iterable[tuple[str, Case]], kernels: int) -> None:
    """The best kernels of each layer, in the order of their estimates."""
    for name, case in named:
        problem = problem_of(case, case.dtype)
        found = choose(problem, arch).candidates
        best = sorted(found, key=lambda candidate: candidate.cycles)[:kernels]
        for candidate in best:
            v = candidate.variant
            if candidate.estimate is None:
                break
            choice = choose(problem, arch, view=candidate.view, variant=v)
            text, linked = ptx_of(v, arch.cc), cubin(v, arch.cc)
            image = _image(kit, v.name, text, v.threads, linked)
            sizes = {"x": problem.itemsize * int(np.prod(problem.input_shape))}
            sizes["w"] = problem.itemsize * int(np.prod(problem.weight_shape))
            recipe = {
                "kind": "layer",
                "case": asdict(case),
                "dtype": case.dtype,
                "seed": 0,
                "estimated_us": 1e6 * candidate.cycles / arch.hertz,
            }
            kit.launches.append(_launch("rates", f"{name}, {v.name}", choice, image, sizes, recipe))


def _pack_door(kit: Kit, arch: GpuArch, network: str) -> None:
    """The kernels that a network asks for through torch."""
    from perf.asked import kernels
    from perf.bringup.networks import NETWORKS, WORKS

    for title, compiled in kernels(arch, NETWORKS[network], WORKS).items():
        kit.provide(title, *compiled())
