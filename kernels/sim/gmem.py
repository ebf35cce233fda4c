"""Twins of kernels/gpu/gmem.py, and float32 functions over all lanes."""

import math

import numpy as np

from implicit_conv.kernels.sim.machine import LANES, current
from implicit_conv.kernels.sim.number import from_bits, to_bits


def load(itemsize):
    def hook(address, predicate):
        address, here = _lanes(address), _lanes(predicate).astype(bool)
        data = np.zeros((len(LANES), itemsize), np.uint8)
        data[here] = current().block.memory.load(address[here], itemsize)
        return data.view(f"u{itemsize}")[:, 0].astype(np.int64)

    return hook


def store(itemsize):
    def hook(address, bits, predicate):
        address, here = _lanes(address), _lanes(predicate).astype(bool)
        data = _lanes(bits)[here].astype(f"u{itemsize}")[:, None].view(np.uint8)
        current().block.memory.store(address[here], data)

    return hook


def store16(address, a, b, c, d, predicate):
    address, here = _lanes(address), _lanes(predicate).astype(bool)
    words = np.stack([_lanes(word) for word in (a, b, c, d)], axis=1).astype(np.uint32)
    current().block.memory.store(address[here], words[here].view(np.uint8))


def to_float(dtype):
    return lambda bits: from_bits(_lanes(bits), dtype)


def from_float(dtype):
    return lambda value: to_bits(_lanes(value).astype(np.float32), dtype).astype(np.int64)


def select(a, b, predicate):
    return np.where(predicate, np.float32(a), np.float32(b))


def _lanes(value):
    return np.broadcast_to(value, LANES.shape)


exp, tanh = np.exp, np.tanh
erfc = np.vectorize(math.erfc, otypes=[np.float32])
