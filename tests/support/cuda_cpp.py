"""CUDA C++ to PTX by NVRTC or nvcc, with the headers of wheels; tests skip by name without them."""

import importlib.util
import shutil
import subprocess
import tempfile
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


def compile_cutlass(name, *defines):
    """The PTX of a file of this folder that includes CUTLASS, by nvcc with the host's g++."""
    found = importlib.util.find_spec("cutlass_library")
    if found is None:
        pytest.skip(
            "needs the headers of nvidia-cutlass: pip install --no-deps nvidia-cutlass==4.2.0.0"
        )
    cutlass = Path(found.origin).parent / "source" / "include"
    folder = include_folder()
    nvcc = folder.parent / "bin" / "nvcc"
    if shutil.which("g++") is None or not nvcc.exists():
        pytest.skip("needs g++ and the wheel nvidia-cuda-nvcc")
    options = ["-ptx", "-arch=sm_90a", "-std=c++17", "-lineinfo", "--expt-relaxed-constexpr"]
    options += [f"-I{each}" for each in (folder, folder / "cccl", cutlass)]
    options += [f"-D{each}" for each in defines]
    source = Path(__file__).with_name(name)
    with tempfile.TemporaryDirectory() as made:
        command = [nvcc, *options, source, "-o", f"{made}/kernel.ptx"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return Path(made, "kernel.ptx").read_text()
