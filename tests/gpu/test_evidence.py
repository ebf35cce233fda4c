"""The table of evidence is the one in the documentation, and names every kernel family."""

from pathlib import Path

from implicit_conv.gpu.evidence import KERNELS, NOT_RUN, ladder, markdown
from implicit_conv.gpu.testing import FAMILIES
from implicit_conv.kernels.ptx import TARGETS

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"


def test_page_has_the_table():
    assert markdown() in PAGE.read_text()


def test_every_family_is_in_it():
    assert [kernels.name for kernels in KERNELS] == list(FAMILIES)
    for kernels in KERNELS:
        assert {v.target for v in FAMILIES[kernels.name].variants} == {kernels.target}
        assert kernels.target in TARGETS


def test_nothing_is_claimed_of_hardware_without_a_run():
    assert {row[-1] for row in ladder()} == {NOT_RUN}
