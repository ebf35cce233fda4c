"""torch on a recorded GPU that computes in the memory of tensors, with planted times."""

import ctypes

import numpy as np
import torch

from implicit_conv.process import cache, disk
from implicit_conv.torch import cuda

OURS, THEIRS = {"ours": 1.0, "theirs": 2.0}, {"ours": 2.0, "theirs": 1.0}


class Card:
    """What runs on the recorded GPU, with the seconds that calls of each kernel are said to take.

    Attributes
    ----------
    ran : list of str
        "ours" and "theirs", since it was last cleared.
    measured : int
        How many calls were timed.
    """

    def __init__(self, on_gpu):
        self.on_gpu, self.seconds, self.ran, self.measured = on_gpu, OURS, [], 0
        self.name, self.version, self.captures = "card", "driver 1", False

    def time(self, call):
        call()
        self.measured += 1
        return self.seconds[
            "ours" if isinstance(getattr(call, "func", None), cuda.Step) else "theirs"
        ]

    def theirs(self, keys, x, w, bias, sizes):
        self.ran.append("theirs")
        plain = (None if t is None else t.as_subclass(torch.Tensor) for t in (x, w, bias))
        return self.on_gpu(torch.ops.aten.convolution.default(*plain, *sizes))

    def theirs_backward(self, keys, dy, x, w, bias_sizes, sizes):
        self.ran.append("theirs")
        plain = (t.as_subclass(torch.Tensor) for t in (dy, x, w))
        found = torch.ops.aten.convolution_backward.default(*plain, bias_sizes, *sizes)
        return tuple(None if t is None else self.on_gpu(t) for t in found)

    def forget(self):
        """Be another process, which finds what is on disk."""
        cache.clear()
        cuda._table.cache_clear()


def installed(recorder, on_gpu, monkeypatch, tmp_path):
    """A card in place of torch's CUDA; the generator ends with it."""
    card = Card(on_gpu)
    run, new = cuda.Step.__call__, torch.empty_strided

    def ours(step, *tensors):
        card.ran.append("ours")
        return run(step, *tensors)

    known = recorder.array

    def array(address, shape, strides, dtype):
        dtype = np.dtype(dtype)
        if 0 in shape or any(a <= address < a + len(m) for a, m in recorder.memory.items()):
            return known(address, shape, strides, dtype)
        size = sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + dtype.itemsize
        memory = np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)
        return np.lib.stride_tricks.as_strided(memory.view(dtype), shape, strides)

    def empty(*sizes, device=None, **options):
        if str(device) != "cuda:0" or torch._C._len_torch_dispatch_stack():  # as Dynamo traces
            return new(*sizes, device=device, **options)
        return on_gpu(new(*sizes, **options))

    recorder.convolved.append("bfloat16")
    monkeypatch.setattr(recorder, "array", array)
    monkeypatch.setattr(cuda.Step, "__call__", ours)
    monkeypatch.setattr(cuda, "_seconds", card.time)
    monkeypatch.setattr(cuda, "torchs_convolution", card.theirs)
    monkeypatch.setattr(cuda, "torchs_backward", card.theirs_backward)
    monkeypatch.setattr(cuda, "version", lambda: card.version)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: card.name)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: card.captures)
    raw = "_cuda_getCurrentRawStream"
    monkeypatch.setattr(torch._C, raw, lambda device: 7, raising=False)
    monkeypatch.setattr(torch, "empty_strided", empty)
    monkeypatch.setattr(disk, "user_folder", lambda: tmp_path)
    for each in (cuda._tell.cache_clear, disk.store.cache_clear, card.forget):
        each()
    yield card
    card.forget()
    disk.store.cache_clear()
