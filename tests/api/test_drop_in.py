"""The doors of scipy take the place of its modules: names that they lack are scipy's own."""

import inspect

import pytest
import scipy.ndimage
import scipy.signal

from implicit_conv import ndimage, signal

PAIRS = [(ndimage, scipy.ndimage), (signal, scipy.signal)]


@pytest.mark.parametrize(("door", "own"), PAIRS)
def test_every_public_name_of_scipy_is_there(door, own):
    handed_on = [name for name in own.__all__ if name not in door.__all__]
    assert len(handed_on) > 40
    for name in handed_on:
        assert getattr(door, name) is getattr(own, name), name
    assert not set(handed_on) & set(vars(door)), "scipy may replace its own"
    for name in set(own.__all__) & set(door.__all__):
        assert getattr(door, name) is not getattr(own, name)
        assert inspect.getmodule(getattr(door, name)).__name__.startswith(door.__name__)


@pytest.mark.parametrize(("door", "own"), PAIRS)
@pytest.mark.parametrize("name", ["gausian_filter", "_ni_support", "__path_of_nothing__"])
def test_what_scipy_lacks_is_an_attribute_error(door, own, name):
    with pytest.raises(AttributeError, match=f"module '{door.__name__}' has no attribute '{name}'"):
        getattr(door, name)
    with pytest.raises(AttributeError, match="and neither has scipy"):
        door.no_such_filter  # noqa: B018
    assert not hasattr(door, name)


def test_import_from_works():
    from implicit_conv.ndimage import label, median_filter
    from implicit_conv.signal import butter, firwin

    assert (label, median_filter) == (scipy.ndimage.label, scipy.ndimage.median_filter)
    assert (butter, firwin) == (scipy.signal.butter, scipy.signal.firwin)
