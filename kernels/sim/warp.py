"""Twins of kernels/gpu/warp.py."""

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
    def keep():
        assert count <= current().registers
        _change_registers(count)

    return keep


def claim_registers(count):
    def claim():
        warp = current()
        block, more = warp.block, LANES.size * (count - warp.registers)
        assert more >= 0
        if block.free_registers < more:
            warp.wait(
                lambda: block.free_registers >= more,
                f"{more} registers, of which {block.free_registers} are free",
            )
        _change_registers(count)

    return claim


def _change_registers(count):
    """Move registers between this warp and the pool of its block."""
    assert 24 <= count <= 256 and count % 8 == 0
    warp = current()
    warp.block.free_registers += LANES.size * (warp.registers - count)
    warp.registers = count


def wait_for_previous_grid():
    """Nothing to do: simulated launches run one after the other."""


def launch_next_grid():
    """Nothing to do: simulated launches run one after the other."""
