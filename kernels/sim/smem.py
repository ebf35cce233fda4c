"""Twins of kernels/gpu/smem.py."""

import numpy as np

from implicit_conv.kernels.sim.machine import BASE, LANES, current  # noqa: F401 (ptx reads BASE)


def _lanes(value):
    return np.broadcast_to(value, LANES.shape)


def _load(addresses, width):
    warp = current()
    return warp.block.smem.load(warp, _lanes(addresses), width)


def _store(addresses, data):
    warp = current()
    warp.block.smem.store(warp, _lanes(addresses), data)


def store16(address, a, b, c, d):
    words = np.stack([_lanes(word) for word in (a, b, c, d)], axis=1) & 0xFFFFFFFF
    _store(address, words.astype(np.uint32).view(np.uint8))


def load16(address):
    words = _load(address, 16).view(np.int32).astype(np.int64)
    if np.ndim(address) == 0:  # the same in all lanes, so a branch may depend on it
        return tuple(int(word) for word in words[0])
    return tuple(words.T)


def store_tiles(tiles, pitch):
    def hook(address, values):
        for tile in range(tiles):
            for half in range(2):
                first = 4 * tile + 2 * half
                pair = np.stack([_lanes(value) for value in values[first : first + 2]], axis=1)
                _store(
                    address + 32 * tile + 8 * pitch * half, pair.astype(np.float32).view(np.uint8)
                )

    return hook


def load_float(address):
    return _load(address, 4).view(np.float32)[:, 0]


def load_quads(count, step):
    def hook(address):
        quads = [_load(address + i * step, 16).view(np.float32) for i in range(count)]
        return tuple(np.concatenate(quads, axis=1).T)

    return hook


def ldmatrix(count, step):
    """Lane l receives from the row that lane l // 4 of the matrix's eight addresses."""

    def hook(address):
        registers = []
        for i in range(count):
            rows = _load(address + i * step, 16).view(np.uint32).reshape(4, 8, 4)
            registers += list(rows.reshape(4, 32))
        return tuple(registers)

    return hook


def fence_async():
    """Nothing to do: the simulator has one view of memory for all proxies."""
