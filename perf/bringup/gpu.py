"""The device of a run: a GPU, through its driver. Nothing here needs a compiler."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from implicit_conv.gpu.cuda import cubin as load
from implicit_conv.gpu.cuda import driver
from implicit_conv.gpu.cuda.encode import encode_for
from implicit_conv.gpu.cuda.kernel import Blob, Kernel
from implicit_conv.gpu.cuda.transfer import STREAM, Buffer, send
from implicit_conv.testing.gpu.device_memory import fetch, wait
from perf.bringup import watchdog
from perf.bringup.kit import Image, Kit, Launch

Array = NDArray[Any]
SMI = "driver_version,clocks.sm,clocks.max.sm,temperature.gpu,mig.mode.current,power.limit"
ATTRIBUTES = {
    "registers": "CU_FUNC_ATTRIBUTE_NUM_REGS",
    "bytes local": "CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES",
    "bytes shared": "CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES",
    "binary": "CU_FUNC_ATTRIBUTE_BINARY_VERSION",
}


class Gpu:
    """The current GPU.

    Raises
    ------
    PlanError, DriverError
        There is no driver or no GPU that it can use.
    """

    timed = True

    def __init__(self, kit: Kit) -> None:
        self.kit, self.arch = kit, driver.current_arch()
        self.device = driver.current_device()
        self.handles: dict[str, tuple[Any, Any]] = {}  # (library, kernel) by image

    def facts(self) -> list[str]:
        """Versions and the GPU."""
        version = driver.call("cuDriverGetVersion")
        arch = self.arch
        lines = [
            f"{arch.device}, {arch.target}, {arch.sms} multiprocessors, {arch.smem_bytes} bytes of "
            "shared memory a block",
            f"driver for CUDA {version // 1000}.{version % 1000 // 10}, bindings for "
            f"{driver.bindings().CUDA_VERSION}, Python {platform.python_version()}, "
            f"numpy {np.__version__}, {platform.platform()}",
        ]
        query = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv"]
        try:
            done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
            lines += (done.stdout + done.stderr).splitlines()
        except (OSError, subprocess.SubprocessError) as error:
            lines.append(f"nvidia-smi: {error}")
        if arch.target != self.kit.about["target"]:
            lines.append(f"the kit is for {self.kit.about['target']}: its kernels may not load")
        return lines

    def load(self, key: str, image: Image) -> list[str]:
        """Load a kernel; its counts, in words."""
        _, kernel = self._handle(key, image)
        attributes = driver.bindings().CUfunction_attribute
        place = driver.call("cuDeviceGet", self.device)
        counts = {
            what: driver.call("cuKernelGetAttribute", getattr(attributes, name), kernel, place)
            for what, name in ATTRIBUTES.items()
        }
        return [", ".join(f"{count} {what}" for what, count in counts.items())]

    def _handle(self, key: str, image: Image) -> tuple[Any, Any]:
        if key not in self.handles:
            content = self.kit.files[f"cubin/{key}"]
            self.handles[key] = load.load_library(content, image.entry, self.device)
        return self.handles[key]

    def clear(self) -> None:
        """Nothing: memory is freed with what names it."""

    def put(self, array: Array, offset: int) -> Any:
        """Memory that holds the bytes of an array; `int` of it is their address."""
        return _Place(np.concatenate([np.zeros(offset, np.uint8), array]), offset)

    def get(self, place: Any, size: int) -> Array:
        """The bytes of memory that `put` made, when all work is done."""
        return fetch(place.buffer, (place.offset + size,), np.uint8)[place.offset :]

    def encode(self, arguments: dict[str, Any]) -> bytes:
        """The 128 bytes of a tensor map; DriverError where the driver refuses it."""
        return encode_for(arguments, self.arch.cc)

    def run(self, launch: Launch, blob: bytes) -> list[str]:
        """Run a launch to its end; what its watchdog recorded."""
        image = self.kit.images[launch.image]
        library, _ = self._handle(launch.image, image)
        if image.watchdog:
            table, _ = driver.call("cuLibraryGetGlobal", library, watchdog.NAME.encode())
            driver.call("cuMemsetD8", table, 0, watchdog.TABLE_BYTES)
        self.ready(launch, blob)()
        wait()
        if not image.watchdog:
            return []
        host = np.empty(watchdog.TABLE_BYTES, np.uint8)
        driver.call("cuMemcpyDtoH", host.ctypes.data, table, host.nbytes)
        return watchdog.records(host, launch.regions)

    def ready(self, launch: Launch, blob: bytes) -> Callable[[], None]:
        """A function that puts a launch on the default stream."""
        image = self.kit.images[launch.image]
        _, kernel = self._handle(launch.image, image)
        made = Kernel(kernel, launch.grid, image.threads, launch.shared_bytes)
        argument = Blob(np.frombuffer(blob, np.uint8))
        return lambda: made.enqueue(argument, STREAM)

    def seconds(self, launch: Launch, blob: bytes, times: int) -> float:
        """Seconds of one of `times` launches, one after the other, with a warm L2."""
        enqueue = self.ready(launch, blob)
        enqueue()
        return _seconds(lambda: [enqueue() for _ in range(times)]) / times

    def copy_rate(self, size: int = 1 << 29, times: int = 10) -> float:
        """Bytes per second that a copy within device memory reads and writes."""
        source, target = Buffer(size), Buffer(size)

        def copy(times: int) -> None:
            for _ in range(times):
                driver.call("cuMemcpyDtoD", target.pointer, source.pointer, size)

        copy(1)
        return 2 * size * times / _seconds(lambda: copy(times))


def _seconds(enqueue: Callable[[], object]) -> float:
    """Seconds that the GPU takes for the work that a function puts on the default stream."""
    start, end = (driver.call("cuEventCreate", 0) for _ in range(2))
    driver.call("cuEventRecord", start, STREAM)
    enqueue()
    driver.call("cuEventRecord", end, STREAM)
    wait()
    return float(driver.call("cuEventElapsedTime", start, end)) / 1e3


class _Place:
    """Device memory, and where in it the array begins."""

    def __init__(self, content: Array, offset: int) -> None:
        self.buffer, self.offset = send(content), offset

    def __int__(self) -> int:
        return int(self.buffer.pointer) + self.offset
