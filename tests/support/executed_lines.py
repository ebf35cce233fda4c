"""`-p executed_lines --executed-lines FILE`: the lines of kernels that each test interprets.

Adds to the file, which the workers of xdist share, a line of JSON for each test.
"""

import json
import time

import pytest

executed = set()


def pytest_addoption(parser):
    parser.addoption("--executed-lines")


def pytest_configure():
    from numba import cuda

    from implicit_conv.kernels.gpu import ptx
    from implicit_conv.ptx.launch import Launch
    from perf.bringup import interpret

    kernel_ptx, run = interpret.kernel_ptx, Launch.run

    class Lined:  # device functions, too, have the lines of their sources
        def jit(self, **options):
            return cuda.jit(lineinfo=True, **options)

    def with_lines(kernel, cc, threads, resident=1, lineinfo=False):
        return kernel_ptx(kernel, cc, threads, resident, True)

    def noted(self):
        before = [block.runs for block in self.kernel.blocks]
        try:
            return run(self)
        finally:
            for block, runs in zip(self.kernel.blocks, before, strict=True):
                if block.runs > runs:
                    executed.update(i.source for i in block.instructions)

    ptx.need_numba_cuda = Lined
    interpret.kernel_ptx, Launch.run = with_lines, noted


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    executed.clear()
    start = time.perf_counter()
    yield
    seconds = round(time.perf_counter() - start, 1)
    places = {source.partition(",")[0] for source in executed}  # not where calls were inlined
    lines = sorted(line.rpartition("/kernels/")[2] for line in places if "/kernels/" in line)
    if lines:
        row = {"test": item.nodeid.partition("@")[0], "seconds": seconds, "lines": lines}
        with open(item.config.getoption("--executed-lines"), "a") as file:
            file.write(json.dumps(row) + "\n")
