"""Twins of kernels/warp.py."""

from implicit_conv.kernels.sim.machine import LANES, current


def lane():
    return LANES


def index():
    return current().index


def block():
    return current().block.index


def blocks():
    return current().block.blocks


def elect():
    current().elected = True
    return True


def sync():
    current().elected = False


def sync_block():
    block = current().block
    block.meet("barrier 0", block.warps_count)


def sync_named(barrier, threads):
    current().block.meet(f"barrier {barrier}", threads // 32)


def keep_registers(count):
    return _registers(count)


def claim_registers(count):
    return _registers(count)


def _registers(count):
    assert 24 <= count <= 256 and count % 8 == 0
    return lambda: None


def wait_for_previous_grid():
    """Blocks of a simulated launch run after those of the one before."""


def launch_next_grid():
    """As `wait_for_previous_grid`."""
