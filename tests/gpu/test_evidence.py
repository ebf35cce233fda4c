"""The table of evidence is the one in the documentation, and names every kernel family."""

from pathlib import Path

from implicit_conv.gpu.verify.evidence import (
    KERNELS,
    NOT_RUN,
    kernel_name,
    ladder,
    markdown,
)
from implicit_conv.gpu.verify.testing import FAMILIES
from implicit_conv.kernels.gpu.ptx import TARGETS
from implicit_conv.tools.cli import main

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_table():
    assert markdown() in (ROOT / "docs" / "gpu.md").read_text()


def test_info_prints_the_ladder(capsys):
    assert main(["info"]) == 0
    printed = capsys.readouterr().out
    for name, _, _, _, target, *_, hardware in ladder():
        assert any(
            line.split()[:2] == [name, target] and line.endswith(f"hardware {hardware}")
            for line in printed.splitlines()
        )


def test_every_family_is_in_it():
    assert [kernels.name for kernels in KERNELS] == list(FAMILIES)
    for kernels in KERNELS:
        assert {v.target for v in FAMILIES[kernels.name].variants} == {kernels.target}
        assert {kernel_name(v) for v in FAMILIES[kernels.name].variants} == {kernels.name}
        assert kernels.target in TARGETS


def test_nothing_is_claimed_of_hardware_without_a_run():
    assert {row[-1] for row in ladder()} == {NOT_RUN}
