"""Tests of implicit_conv.torch: torch's own kernels are the oracle.

Each file is skipped where torch is missing; this one is imported even there.
"""

import pytest

import implicit_conv.torch as door


@pytest.fixture(autouse=True)
def disabled():
    """Every test begins and ends with torch's own kernels, and with random tensors of a seed."""
    import torch

    torch.manual_seed(0)
    door.disable()
    yield
    door.disable()
    from implicit_conv.operators.threads import use_team

    use_team(None)  # which converted models borrow


@pytest.fixture
def ours(monkeypatch):
    """The steps of this package that were run since the test began, wherever they can, whatever
    takes less time.
    """
    from implicit_conv.torch import first_calls
    from implicit_conv.torch.steps import Step

    monkeypatch.setattr(first_calls, "worth_measuring", lambda plan: False)

    run, found = Step.__call__, []

    def counted(step, *arguments, **options):
        result = run(step, *arguments, **options)
        found.extend([step] * (result is not None))  # else torch's kernel runs
        return result

    monkeypatch.setattr(Step, "__call__", counted)
    return found
