"""What surrounds a call fails, at every place where it can: the result is right or the error is a
documented one, nothing leaks or hangs, and the next call is right.

The first call of a site fails, once or for ever, then the second, ... until a fault is not met.
`faults` has the sites, and docs/trust/reliability.md says what may come of them.
"""

import collections
import functools

import pytest
from fault_memory import NEVER
from fault_sweep import Found, Sweep, found
from processes import output_of
from sampling import count, sampled

FILES = ("open", "read", "write", "rename", "unlink", "stat", "mkdir")
# How the error of the call with the fault may begin. At other sites there is none.
ERRORS = {
    "numpy": "MemoryError: Unable to allocate",
    "open": "TranslationError: ",  # of a source, which is compiled
    "read": "TranslationError: ",
    "cpython": "MemoryError: ",
}
# Calls, and the sites where faults are planted in them.
SAMPLE = [
    (Sweep("conv", "cold"), ("open", "rename")),
    (Sweep("conv", "warm", 2), ("numpy", "thread", "sem_init", "getaffinity")),
]
ALL = [
    (Sweep("conv", "kept"), ("numpy", "cpython")),
    (Sweep("conv", "kept", 2), ("numpy", "thread")),
    (Sweep("pauses", "kept", 2), ("setaffinity", "futex")),
    (Sweep("conv", "warm"), ("open", "read", "stat", "numpy", "thread", "futex")),
    (Sweep("conv", "warm", 2), ("numpy", "thread", "futex", "sem_init", "getaffinity")),
    (Sweep("conv", "warm", 2, "queue"), ("numpy", "thread", "futex")),
    *(
        (Sweep(kind, "warm", threads), ("numpy", "open", "thread"))
        for kind in ("winograd", "packed", "input_grad", "weight_grad")
        for threads in (1, 2)
    ),
    (Sweep("conv", "cold"), (*FILES, "numpy", "thread", "futex")),
    (Sweep("conv", "cold", 2), ("numpy", "thread", "sem_init")),
]


def trouble(found: Found) -> str:
    """What is wrong with an outcome; an empty text if nothing is."""
    _, site, fault, outcome, usual = found
    if outcome.hung or not outcome.ended:
        return "it hangs" if outcome.hung else f"it ends with status {outcome.status}"
    report = dict(outcome.report)
    census, call = report.pop("census"), report.pop("call")
    planted = fault.first != NEVER
    known = call == "right" or (planted and site in ERRORS and call.startswith(ERRORS[site]))
    wrong = [] if known else [f"the call: {call}"]
    wrong += [f"{what}: {said}" for what, said in report.items() if said != "right"]
    for what, number in usual.report["census"].items():
        if census[what] > number:
            wrong.append(f"{what}: {census[what]}, but {number} without the fault")
    return "; ".join(wrong)


@functools.cache
def is_possible():
    """Whether this machine lets a process answer the system calls of its children."""
    code = "import sys; sys.path.insert(0, 'tests/support'); import faults; "
    return output_of(code + "print(faults.is_possible())") == "True"


@sampled
@pytest.mark.slow
@pytest.mark.parametrize(("sweep", "sites"), count(SAMPLE, ALL))
def test_a_fault_is_survived(sweep, sites, tmp_path):
    if not is_possible():
        pytest.skip("needs Linux on x86-64, and seccomp's notifications")
    outcomes = found(sweep, sites, count(2, 0), tmp_path / "cache")
    bad = [(*one[:3], trouble(one), one.outcome.errors[-2000:]) for one in outcomes if trouble(one)]
    assert not bad, f"{len(bad)} of {len(outcomes)}: {bad[:5]}"
    met = [one for one in outcomes if one.fault.first <= one.outcome.calls]
    assert {one.site for one in met} == set(sites)
    said = ((one.site, one.outcome.report["call"].partition(":")[0]) for one in met)
    print(sweep, *collections.Counter(said).items(), sep="\n")


def test_memory_does_not_grow():
    """Every allocation of numpy's fails in calls without a plan, again and again: what stays in use
    is what the first failures left. (A thread may still hold an array at the end of one round, so
    the lesser of the last two counts; what leaks is there in both.)
    """
    for kind in output_of(GROWTH).splitlines():
        name, failures, *live = kind.split()
        assert int(failures) > 3, name
        assert min(map(int, live[-2:])) <= max(map(int, live[1:-2])), kind


GROWTH = """
import gc, os, sys
sys.path.insert(0, "tests/support")
from fault_sweep import KINDS, verdict
from fault_memory import ARMED, CALLS, FIRST, LIVE, Fault, Shared, take_numpy_memory
from implicit_conv import clear_plan_cache

shared = Shared(Fault(0))
take_numpy_memory(shared)
words = shared.words

def failures(kind):
    # Let each allocation of a call fail; returns how many there were.
    number = 0
    while True:
        clear_plan_cache()
        words[CALLS], words[FIRST], words[ARMED] = 0, number + 1, 1
        try:
            kind.compute()
        except MemoryError:
            pass
        words[ARMED] = 0
        assert verdict(kind) == "right"
        if words[CALLS] <= number:
            return number
        number += 1

del KINDS["pauses"]
for name, kind in KINDS.items():
    found = [(failures(kind), gc.collect(), int(words[LIVE])) for _ in range(6)]
    print(name, found[-1][0], *(live for *_, live in found), flush=True)
os._exit(0)  # arrays that Python's end frees would call functions that LLVM has freed
"""
