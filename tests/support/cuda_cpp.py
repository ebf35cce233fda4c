"""CUDA C++ to PTX by NVRTC, with the headers of the wheels; tests skip by name without them."""

from pathlib import Path

import pytest


def include_folder():
    """The folder of the wheels' headers, which has cuda.h."""
    cu13 = pytest.importorskip("nvidia.cu13", reason="needs the wheels of the extra assemble")
    folder = Path(next(iter(cu13.__path__))) / "include"
    if not (folder / "cuda.h").exists():
        pytest.skip("needs cuda.h of the wheel nvidia-cuda-runtime")
    return folder


def compile_ptx(source, target="sm_90a"):
    """The PTX of a text for a target."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", exc_type=ImportError)
    folder = include_folder()
    _, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    options = [f"--gpu-architecture={target.replace('sm', 'compute')}", "-lineinfo", "-std=c++17"]
    options += [f"-I{folder}", f"-I{folder / 'cccl'}"]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [o.encode() for o in options])
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = b" " * size
    nvrtc.nvrtcGetProgramLog(program, log)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log.decode()
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = b" " * size
    nvrtc.nvrtcGetPTX(program, text)
    return text.decode().rstrip("\0 ")
