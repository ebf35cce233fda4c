"""
Train a CNN in numpy
====================

A small network learns to read digits: its convolutions and all of their
gradients are functions here, and the rest is numpy. torch computes the
gradients of one batch as a check.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont

from implicit_conv import conv2d, conv2d_input_grad, conv2d_weight_grad

# %%
# Digits of 16 x 16 pixels, anywhere in the picture and in noise:

rng, font = np.random.default_rng(0), ImageFont.load_default(13)


def draw(count):
    labels = rng.integers(0, 10, count)
    x = 0.2 * rng.standard_normal((count, 1, 16, 16), np.float32)
    for i, label in enumerate(labels):
        image = Image.new("L", (16, 16))
        corner = rng.integers(0, 6, 2) - (0, 3)
        ImageDraw.Draw(image).text(corner, str(label), 255, font)
        x[i, 0] += np.asarray(image) / 255
    return x, labels


# %%
# Two convolutions with stride 2, and one over all pixels that is left for
# the ten scores. In the backward pass each gives the gradient of its
# filter, and of its input for the layer below.

shapes = (16, 1, 3, 3), (32, 16, 3, 3), (10, 32, 4, 4)
deviations = [np.sqrt(2 / np.prod(shape[1:])) for shape in shapes]
pairs = zip(deviations, shapes)
filters = [rng.normal(0, *pair).astype(np.float32) for pair in pairs]
down = {"stride": 2, "padding": 1}


def forward(x):
    a = conv2d(x, filters[0], activation="relu", **down)
    b = conv2d(a, filters[1], activation="relu", **down)
    return a, b, conv2d(b, filters[2])[..., 0, 0]


def gradients(x, labels):
    a, b, scores = forward(x)
    chances = np.exp(scores - scores.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    rows = np.arange(len(x))
    loss = -np.log(chances[rows, labels]).mean()
    chances[rows, labels] -= 1
    dy = chances[..., None, None] / np.float32(len(x))
    db = conv2d_input_grad(dy, filters[2], b.shape) * (b > 0)
    da = conv2d_input_grad(db, filters[1], a.shape, **down) * (a > 0)
    return loss, [
        conv2d_weight_grad(x, da, shapes[0], **down),
        conv2d_weight_grad(a, db, shapes[1], **down),
        conv2d_weight_grad(b, dy, shapes[2]),
    ]


batch = draw(64)


def with_implicit_conv():
    return gradients(*batch)[1]


def with_torch():
    weights = [torch.from_numpy(w).requires_grad_() for w in filters]
    a = F.relu(F.conv2d(torch.from_numpy(batch[0]), weights[0], **down))
    b = F.relu(F.conv2d(a, weights[1], **down))
    scores = F.conv2d(b, weights[2])[..., 0, 0]
    F.cross_entropy(scores, torch.from_numpy(batch[1])).backward()
    return [w.grad for w in weights]


for ours, theirs in zip(with_implicit_conv(), with_torch()):
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)

# %%
# Training is gradient descent with momentum, on batches of 64 of 6,000
# digits.

x, labels = draw(6000)
losses, moments = [], [np.zeros_like(w) for w in filters]
for _ in range(12):
    for chosen in np.split(rng.permutation(6000)[:5952], 93):
        loss, steps = gradients(x[chosen], labels[chosen])
        losses.append(loss)
        for i, step in enumerate(steps):
            moments[i] = 0.9 * moments[i] - 0.1 * step
            filters[i] += moments[i]
x, labels = draw(1000)
found = forward(x)[2].argmax(1)
print(f"{np.mean(found == labels):.1%} of 1,000 new digits are read")

# %%

figure = plt.figure(figsize=(9, 3.2), layout="constrained")
left, right = figure.subfigures(1, 2)
left.subplots().plot(losses)
left.axes[0].set(xlabel="batch", ylabel="loss")
for axis, picture, digit in zip(right.subplots(2, 5).flat, x, found):
    axis.imshow(picture[0], cmap="gray")
    axis.set(title=str(digit), xticks=[], yticks=[])
plt.show()

# %%
# **Time** on one thread (Zen 4, 2026-11): 1.01 ms here; 1.28 ms with torch
# 2.13.0, 1.3 times as long.
#
# This is the time of the gradients of one batch.
