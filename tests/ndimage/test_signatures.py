"""What type checkers know of the filters is what scipy's own signatures say."""

import inspect
import runpy
import typing
from pathlib import Path

import pytest
import scipy.ndimage

from implicit_conv import ndimage

FILE = Path(ndimage.__file__).parent / "signatures.py"


@pytest.mark.parametrize("name", ndimage.FILTERS)
def test_parameters_are_those_of_scipy_and_ours(name, monkeypatch):
    pytest.importorskip("typing_extensions")
    monkeypatch.setattr(typing, "TYPE_CHECKING", True)
    names = runpy.run_path(str(FILE))
    ours = inspect.signature(names[name]).parameters
    hints = typing.get_type_hints(names[name], names)
    options = typing.get_args(hints["options"]) if "options" in ours else ()
    known = {key for each in options for key in each.__optional_keys__}
    assert (set(ndimage.OPTIONS) <= known) == (name in ndimage.SUMS)
    given = {key: value for key, value in ours.items() if key != "options"}
    theirs = inspect.signature(getattr(scipy.ndimage, name)).parameters
    for key, value in given.items():
        assert (value.default, value.kind) == (theirs[key].default, theirs[key].kind), key
    positional = [key for key, value in theirs.items() if value.kind == value.POSITIONAL_OR_KEYWORD]
    assert [key for key in given if key in positional] == positional
    others = {key for key, value in theirs.items() if value.kind == value.KEYWORD_ONLY}
    assert others <= {*given, *known}
