"""Checks that need a GPU, each in its own process (implicit_conv.testing.gpu.hardware)."""

import functools
import re
import shutil

import pytest

from implicit_conv.gpu.plan.families import FAMILIES
from implicit_conv.testing.gpu.hardware import CRASHED
from perf.bringup.processes import run_module

pytestmark = pytest.mark.gpu
SECONDS = 240
CRASHES = 5  # processes that may end early before a check gives up
PROBLEMS = 100  # of a family: at least 500 in all on every generation since sm_90
REDUCED = ("cp_async-mma", "cp_async-words", "elements-mma", "tma-mma", "tma-w-mma", "tma-wgmma")


def run(*arguments, prefix=()):
    """Run a check to its end or for `SECONDS`."""
    return run_module(
        "implicit_conv.testing.gpu.hardware", *arguments, seconds=SECONDS, prefix=prefix
    )


@functools.cache
def missing():
    """The reason why nothing can run here, or an empty string; cached."""
    done = run("here")
    if done.status == 2:
        return done.output.strip().splitlines()[-1]
    assert done.status == 0, done.output
    return ""


def check(*arguments, prefix=()):
    """Run a check: skip if it cannot run here, fail with all that it printed if it fails."""
    if missing():
        pytest.skip(missing())
    done = run(*arguments, prefix=prefix)
    if done.status == 2:
        pytest.skip(done.output.strip().splitlines()[-1])
    assert done.status == 0, f"status {done.status} after {done.seconds:.0f} s\n{done.output}"
    print(done.output)


def check_problems(*arguments, count, limit):
    """Run a check of numbered problems; after one that ends its process, each in a process."""
    if missing():
        pytest.skip(missing())
    done = run(*arguments, str(count))
    reports, crashes = [done.output], 0
    while done.status in (None, CRASHED) and crashes < limit:
        named = re.findall(r"^(\d+): ", done.output, re.MULTILINE)
        assert named, "\n".join(reports)
        crashes += 1
        done = run(*arguments, str(count), str(int(named[-1]) + 1))
        reports.append(done.output)
    if done.status == 2:
        pytest.skip(done.output.strip().splitlines()[-1])
    assert done.status == 0 and not crashes, "\n".join(reports)


@pytest.mark.parametrize("name", FAMILIES)
def test_family_equals_oracle(name):
    check_problems("family", name, count=PROBLEMS, limit=CRASHES)


def test_tiles_of_production_equal_oracle():
    check_problems("tiles", count=20, limit=CRASHES)


def test_weight_gradients_equal_the_cpu():
    check_problems("weight_gradients", count=20, limit=CRASHES)


def test_layers_of_a_network():
    check("layers")


def test_input_gradients_equal_the_cpu():
    check("input_gradients")


def test_arrays_of_other_libraries():
    check("arrays")


def test_copies_deliver_what_tma_says():
    """Walks, fills and swizzles; on sm_90 the permuted-axes walk row by row."""
    check("copies")


def test_driver_takes_our_maps():
    check("maps")


@pytest.mark.parametrize("name", REDUCED)
@pytest.mark.parametrize("tool", ["memcheck", "synccheck", "racecheck"])  # the slowest last
def test_sanitizer(name, tool):
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        pytest.skip("compute-sanitizer is not on the path")
    # "no": the driver is asked on purpose whether there is a context and whether it takes a map.
    options = ("--tool", tool, "--error-exitcode", "1", "--report-api-errors", "no")
    check("family", name, "2", prefix=(sanitizer, *options))
