"""Options arrive under their names: public functions give them by position, to save time."""

import inspect

import numpy as np
import pytest

import implicit_conv
from implicit_conv.operators import dispatch
from implicit_conv.operators.dispatch import SHAPES, Options

NAMES = [
    f"{plan}conv{kind.format(rank)}"
    for plan in ("", "plan_")
    for kind in ("{}d", "_transpose{}d", "{}d_input_grad", "{}d_weight_grad")
    for rank in (1, 2, 3)
]


@pytest.mark.parametrize("name", NAMES)
def test_every_option_arrives_under_its_name(name, monkeypatch):
    """Each option has a value that no other one has, and it arrives at the function's operator."""
    arrived = []

    def stop(operator, shapes, dtypes, options, searches=True):
        arrived.append((operator.name, options))
        raise KeyboardInterrupt

    monkeypatch.setattr(dispatch, "_plan", stop)
    function = getattr(implicit_conv, name)
    parameters = inspect.signature(function).parameters
    given = {option: f"a {option}" for option in Options._fields if option in parameters}
    given |= {option: (1, 2) for option in SHAPES if option in parameters}
    shape = 1, 1, 1
    arrays = [shape if name.startswith("plan") else np.ones(shape, np.float32)] * 2
    first = [parameter for parameter in parameters if parameter not in given][:2]
    with pytest.raises(KeyboardInterrupt):
        function(**dict(zip(first, arrays, strict=True)), **given)
    assert arrived == [(name.removeprefix("plan_"), Options(**given))]
