"""The doors of scipy take the place of its modules: names that they lack are scipy's own."""

import inspect

import pytest
import scipy.ndimage
import scipy.signal

from implicit_conv import ndimage, signal

PAIRS = [(ndimage, scipy.ndimage), (signal, scipy.signal)]


@pytest.mark.parametrize(("door", "own"), PAIRS)
def test_every_public_name_of_scipy_is_there(door, own):
    handed_on = [name for name in own.__all__ if name not in door.served()]
    assert len(handed_on) > 40
    for name in handed_on:
        assert getattr(door, name) is getattr(own, name), name
    assert not set(handed_on) & set(vars(door)), "scipy may replace its own"
    for name in door.served():
        assert getattr(door, name) is not getattr(own, name)
        assert inspect.getmodule(getattr(door, name)).__name__.startswith(door.__name__)


@pytest.mark.parametrize(("door", "own"), PAIRS)
def test_what_is_served_is_listed(door, own):
    """In order, each name once, and no other name of ours is one of scipy's."""
    names = door.served()
    assert isinstance(names, tuple)
    assert names == tuple(sorted(set(names)))
    assert set(names) <= set(own.__all__)
    ours = {name for name in own.__all__ if getattr(door, name) is not getattr(own, name)}
    assert ours == set(names)


@pytest.mark.parametrize(("door", "own"), PAIRS)
def test_all_names_come_with_a_star_and_are_shown(door, own):
    found = {}
    exec(f"from {door.__name__} import *", found)
    del found["__builtins__"]
    assert set(own.__all__) <= set(found) == set(dir(door))
    assert len(door.__all__) == len(set(door.__all__))
    for name, value in found.items():
        assert value is getattr(door, name)


@pytest.mark.parametrize(("door", "own"), PAIRS)
@pytest.mark.parametrize("name", ["gausian_filter", "_ni_support", "__path_of_nothing__"])
def test_what_scipy_lacks_is_an_attribute_error(door, own, name):
    with pytest.raises(AttributeError, match=f"module '{door.__name__}' has no attribute '{name}'"):
        getattr(door, name)
    with pytest.raises(AttributeError, match="and neither has scipy"):
        door.no_such_filter  # noqa: B018
    assert not hasattr(door, name)


def test_import_from_works():
    from implicit_conv.ndimage import generic_filter, label
    from implicit_conv.signal import butter, firwin

    assert (label, generic_filter) == (scipy.ndimage.label, scipy.ndimage.generic_filter)
    assert (butter, firwin) == (scipy.signal.butter, scipy.signal.firwin)
