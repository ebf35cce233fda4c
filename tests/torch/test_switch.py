"""Calls of `enable` that are cut in two: by Ctrl-C, by errors of torch and by forks."""

import os
import re
import sys

import pytest
from processes import output_of

torch = pytest.importorskip("torch", minversion="2.13", reason="pip install '.[torch]'")

import implicit_conv.torch as door  # noqa: E402
from implicit_conv.torch import override, switch  # noqa: E402

NAMES = tuple(override.KERNELS)


def kernels():
    """What the dispatcher has for the CPU, by operator."""
    tables = {name: torch._C._dispatch_dump_table(f"aten::{name}") for name in NAMES}
    return {name: table.split("\nCPU:")[-1].split("\n")[0] for name, table in tables.items()}


def ours():
    """The operators whose kernels are ours."""
    return tuple(name for name, kernel in kernels().items() if kernel != TORCH[name])


TORCH = kernels()


@pytest.mark.parametrize("number", range(len(NAMES)))
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_all_kernels_are_registered_or_none(number, error, monkeypatch):
    class Interrupted(torch.library.Library):
        """It raises after the registration of this number."""

        def impl(self, name, *arguments, **options):
            super().impl(name, *arguments, **options)
            if name == NAMES[number]:
                raise error

    with monkeypatch.context() as patched:
        patched.setattr(switch, "LIBRARY", Interrupted)
        with pytest.raises(error):
            door.enable()
    assert ours() == ()
    with door.enable():
        assert ours() == NAMES
    assert ours() == ()


def test_an_interrupt_once_a_call_is_in_force_undoes_it(monkeypatch):
    """The signal handler runs in the thread that waits, after the other one has done its work."""

    def interrupted(*arguments, of=switch.prepare):
        of(*arguments)
        monkeypatch.setattr(switch, "prepare", of)
        raise KeyboardInterrupt

    monkeypatch.setattr(switch, "prepare", interrupted)
    with pytest.raises(KeyboardInterrupt):
        door.enable()
    assert ours() == ()


@pytest.mark.parametrize("next_call", ["enable", "disable"])
def test_the_next_call_ends_a_block_whose_end_was_lost(next_call):
    """An exception in `__exit__` before its first instruction; the object is gone then."""
    door.enable().__enter__()
    assert ours() == NAMES
    if next_call == "disable":
        door.disable()
    else:
        with door.enable():
            assert ours() == NAMES
    assert ours() == ()


def test_a_plain_call_stays_in_force():
    door.enable()
    with door.enable():
        assert ours() == NAMES
    with override.suspended():
        assert ours() == ()
    assert ours() == NAMES


def test_kernels_are_freed(monkeypatch):
    """After some time, since other threads may still be in them."""
    monkeypatch.setattr(switch, "GRACE_SECONDS", 3600)
    for _ in range(3):
        with door.enable():
            pass
    kept = len(override.SWITCH._retired)
    assert kept >= 3
    monkeypatch.setattr(switch, "GRACE_SECONDS", -1)
    with door.enable():
        pass
    assert not override.SWITCH._retired


TOGGLED = """
import threading, time, torch
import implicit_conv.torch as door
from implicit_conv.torch import switch
torch.set_num_threads(1)
x, w, over, errors = torch.ones(1, 1, 5, 5), torch.ones(1, 1, 3, 3), threading.Event(), []
def convolve():
    while not over.is_set():
        try:
            assert (torch.nn.functional.conv2d(x, w) == 9).all()
        except Exception as error:
            errors.append(error)
threads = [threading.Thread(target=convolve) for _ in range(20)]
[thread.start() for thread in threads]
for _ in range(10):
    with door.enable():
        time.sleep(0.02)
over.set()
[thread.join() for thread in threads]
print(len(errors), str(errors[:1])[:200])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc overwrites the memory that is freed")
@pytest.mark.slow
def test_a_kernel_is_not_freed_while_a_thread_is_about_to_run_it():
    """torch's dispatcher waits for the GIL with a plain address of the kernel."""
    freed = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0", "MALLOC_PERTURB_": 165}
    assert output_of(TOGGLED, timeout=120, **freed).split()[0] == "0"


def test_the_first_call_waits_for_no_lock_of_settings():
    """A fork has that lock while it waits for the first call of another thread."""
    code = """
import threading, warnings
import implicit_conv.settings as settings
import implicit_conv.torch as door
warnings.simplefilter("ignore")
with settings._lock:
    thread = threading.Thread(target=door.enable, daemon=True)
    thread.start()
    thread.join(60)
    print(thread.is_alive(), flush=True)
"""
    assert output_of(code, timeout=120) == "False"


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("seconds", [0.001, 0.01, 0.08])
@pytest.mark.parametrize("first", ["enable", "disable", "explain"])
def test_a_fork_during_the_first_call_of_another_thread(first, seconds):
    """It imports, and a child that has the lock of an import would wait for ever."""
    code = f"""
import os, signal, threading, time, warnings, torch
import implicit_conv.torch as door
warnings.simplefilter("ignore")
torch.set_num_threads(1)
x, w = torch.ones(1, 8, 9, 9), torch.ones(8, 8, 3, 3)
calls = {{"enable": door.enable, "disable": door.disable,
         "explain": lambda: door.explain(torch.nn.Conv2d(8, 8, 3), x)}}
thread = threading.Thread(target=calls[{first!r}])
thread.start()
time.sleep({seconds})
child = os.fork()
if child == 0:
    signal.alarm(60)
    calls[{first!r}]()
    with door.enable():
        os._exit(0 if (torch.nn.functional.conv2d(x, w) == 72).all() else 1)
status = os.waitpid(child, 0)[1]
thread.join()
print(status)
"""
    assert output_of(code, timeout=120) == "0"


def test_other_words_are_told_what_to_write():
    from implicit_conv import PlanError, config

    with pytest.raises(TypeError, match=r"write implicit_conv\.config\(num_threads=2\)$"):
        door.enable(threads=2)
    with config(num_threads=2), door.enable(precision="strict"):
        pass
    with pytest.raises(TypeError, match=r"'precison'; write precision='strict'$"):
        door.enable(precison="strict")
    for call in (lambda: door.enable(precision="high"), lambda: door.enable(choose="all")):
        with pytest.raises(PlanError, match="is none of"):
            call()


def test_names_and_states_are_shown():
    assert dir(door) == door.__all__
    with door.enable(precision="strict") as enabled:
        assert re.search(r"<enable\(.*'strict'.*in force", repr(enabled))
    assert "undone" in repr(enabled)
