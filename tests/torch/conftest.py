"""Tests of implicit_conv.torch: torch's own kernels are the oracle.

Each file is skipped where torch is missing; this one is imported even there.
"""

import pytest

import implicit_conv.torch as door


@pytest.fixture(autouse=True)
def disabled():
    """Every test begins and ends with torch's own kernels, and with random tensors of a seed."""
    import torch

    from implicit_conv.torch import first_calls, region

    # Our kernel runs wherever it can, whatever takes less time beside other tests.
    with pytest.MonkeyPatch.context() as patch:
        for module in (first_calls, region):
            patch.setattr(module, "worth_measuring", lambda plan: False)
        torch.manual_seed(0)
        door.disable()
        yield
        door.disable()
    from implicit_conv.kernels.cpu.runtime.active_threads import use as use_team

    use_team(None)  # which converted models borrow


def see_all_calls(monkeypatch):
    """Have Python see known calls, too, from here to the end of the test."""
    from implicit_conv.process import cache
    from implicit_conv.torch.front import Front

    monkeypatch.setattr(Front, "keep", lambda *arguments: None)
    for table in cache.TABLES:
        table.clear()


@pytest.fixture
def seen_calls(monkeypatch):
    """Python sees all calls, and not only those of which it has no program."""
    see_all_calls(monkeypatch)


@pytest.fixture
def ours(monkeypatch):
    """The steps of this package that were run since the test began, wherever they can, whatever
    takes less time.
    """
    from implicit_conv.torch.steps import Step

    see_all_calls(monkeypatch)

    run, found = Step.__call__, []

    def counted(step, *arguments, **options):
        result = run(step, *arguments, **options)
        found.extend([step] * (result is not None))  # else torch's kernel runs
        return result

    monkeypatch.setattr(Step, "__call__", counted)
    return found


@pytest.fixture
def programs(monkeypatch):
    """The regions whose programs ran since the test began."""
    from implicit_conv.torch.region import RegionFunction

    run, found = RegionFunction._run, []

    def counted(function, *arguments):
        y = run(function, *arguments)
        found.extend([function] * (y is not None))
        return y

    monkeypatch.setattr(RegionFunction, "_run", counted)
    return found


@pytest.fixture
def compiles():
    """torch.compile forgets before and after what it compiled."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def one_thread():
    """Calls on one thread, none of which is known at first."""
    import torch

    from implicit_conv.process import cache

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    cache.clear()
    yield
    torch.set_num_threads(before)
    cache.clear()
