"""Networks that both libraries can express, here in Flax; `with_torch.py` has their twins.

Layers are called the same in both, so that groups of channels can be compared by name. Names say
whose wiring a network has; widths are small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxeff
from jaxeff.nn import ResNet18

IMAGES, SEQUENCES = (1, 16, 16, 3), (1, 6, 10)


class MobileNet(nnx.Module):
    """Inverted residuals with depthwise convolutions (MobileNetV2)."""

    SIZES = ((16, 32, 16), (16, 32, 24), (24, 48, 24))

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Makes the layers."""
        self.stem = _conv(3, 16, 3, rngs)
        for i, (inner, hidden, out) in enumerate(self.SIZES):
            setattr(self, f"expand{i}", _conv(inner, hidden, 1, rngs))
            setattr(self, f"expand_bn{i}", nnx.BatchNorm(hidden, rngs=rngs))
            setattr(self, f"depthwise{i}", _conv(hidden, hidden, 3, rngs, groups=hidden))
            setattr(self, f"depthwise_bn{i}", nnx.BatchNorm(hidden, rngs=rngs))
            setattr(self, f"project{i}", _conv(hidden, out, 1, rngs))
        self.head = nnx.Linear(24, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        x = jax.nn.relu6(self.stem(x))
        for i, (inner, _, out) in enumerate(self.SIZES):
            y = jax.nn.relu6(getattr(self, f"expand_bn{i}")(getattr(self, f"expand{i}")(x)))
            y = jax.nn.relu6(getattr(self, f"depthwise_bn{i}")(getattr(self, f"depthwise{i}")(y)))
            y = getattr(self, f"project{i}")(y)
            x = x + y if inner == out else y
        return self.head(x.mean((1, 2)))


class DenseNet(nnx.Module):
    """A block whose layers read all before them, and a transition."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Makes the layers."""
        self.stem = _conv(3, 16, 3, rngs)
        for i in range(3):
            setattr(self, f"norm{i}", nnx.BatchNorm(16 + 8 * i, rngs=rngs))
            setattr(self, f"grow{i}", _conv(16 + 8 * i, 8, 3, rngs))
        self.norm = nnx.BatchNorm(40, rngs=rngs)
        self.transition = _conv(40, 20, 1, rngs)
        self.head = nnx.Linear(20, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        x = self.stem(x)
        for i in range(3):
            y = getattr(self, f"grow{i}")(jax.nn.relu(getattr(self, f"norm{i}")(x)))
            x = jnp.concatenate([x, y], -1)
        return self.head(self.transition(jax.nn.relu(self.norm(x))).mean((1, 2)))


class UNet(nnx.Module):
    """Down, up by a transposed convolution, joined by concatenation."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Makes the layers."""
        self.down, self.deep = _conv(3, 16, 3, rngs), _conv(16, 32, 3, rngs)
        self.up = nnx.ConvTranspose(32, 16, (2, 2), strides=(2, 2), rngs=rngs)
        self.join, self.head = _conv(32, 16, 3, rngs), _conv(16, 2, 1, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """A map of the image's size."""
        x = jax.nn.relu(self.down(x))
        y = jax.nn.relu(self.deep(nnx.max_pool(x, (2, 2), strides=(2, 2))))
        return self.head(jax.nn.relu(self.join(jnp.concatenate([x, self.up(y)], -1))))


class ResNeXt(nnx.Module):
    """A residual block with a grouped convolution."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Makes the layers."""
        self.stem, self.reduce = _conv(3, 32, 3, rngs), _conv(32, 16, 1, rngs)
        self.grouped = _conv(16, 16, 3, rngs, groups=4)
        self.expand, self.head = _conv(16, 32, 1, rngs), nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        x = jax.nn.relu(self.stem(x))
        y = jax.nn.relu(self.grouped(jax.nn.relu(self.reduce(x))))
        return self.head((x + self.expand(y)).mean((1, 2)))


class Shuffle(nnx.Module):
    """Grouped convolutions between which channels are shuffled (ShuffleNet)."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Makes the layers."""
        self.stem, self.first = _conv(3, 16, 3, rngs), _conv(16, 32, 1, rngs, groups=2)
        self.second, self.head = _conv(32, 32, 1, rngs, groups=2), nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        x = jax.nn.relu(self.first(self.stem(x)))
        b, h, w, c = x.shape
        x = x.reshape(b, h, w, 2, c // 2).swapaxes(3, 4).reshape(b, h, w, c)
        return self.head(jax.nn.relu(self.second(x)).mean((1, 2)))


class ViT(nnx.Module):
    """Patches, a class token, positions, attention with heads, layer norms."""

    KEYS = 4

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Makes the layers."""
        self.patch = nnx.Conv(3, 32, (4, 4), strides=4, padding="VALID", rngs=rngs)
        self.token = nnx.Param(jnp.zeros((1, 1, 32)))
        self.position = nnx.Param(jnp.zeros((1, 17, 32)))
        self.norm1, self.norm2 = nnx.LayerNorm(32, rngs=rngs), nnx.LayerNorm(32, rngs=rngs)
        self.query, self.out = nnx.Linear(32, 32, rngs=rngs), nnx.Linear(32, 32, rngs=rngs)
        self.key = nnx.Linear(32, 8 * self.KEYS, rngs=rngs)
        self.value = nnx.Linear(32, 8 * self.KEYS, rngs=rngs)
        self.up, self.down = nnx.Linear(32, 64, rngs=rngs), nnx.Linear(64, 32, rngs=rngs)
        self.norm, self.head = nnx.LayerNorm(32, rngs=rngs), nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        x = self.patch(x)
        x = x.reshape(x.shape[0], 16, -1)
        token = jnp.broadcast_to(self.token[...], (x.shape[0], 1, x.shape[-1]))
        x = jnp.concatenate([token, x], 1) + self.position[...]
        x = x + self.out(self._attended(self.norm1(x)))
        x = x + self.down(jax.nn.gelu(self.up(self.norm2(x))))
        return self.head(self.norm(x)[:, 0])

    def _attended(self, x: jax.Array) -> jax.Array:
        b, t, _ = x.shape
        query = self.query(x).reshape(b, t, self.KEYS, 4 // self.KEYS, 8)
        key, value = (f(x).reshape(b, t, self.KEYS, 8) for f in (self.key, self.value))
        weights = jax.nn.softmax(jnp.einsum("btngd,bsnd->bngts", query, key) / 8**0.5)
        return jnp.einsum("bngts,bsnd->btngd", weights, value).reshape(b, t, 32)


class GroupedQueries(ViT):
    """The same with two keys for four queries."""

    KEYS = 2


class Recurrent(nnx.Module):
    """An LSTM, its gates in one weight."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Makes the layers."""
        self.inner = nnx.Linear(10, 16, rngs=rngs)
        self.rnn = nnx.RNN(nnx.OptimizedLSTMCell(16, 24, rngs=rngs))
        self.head = nnx.Linear(24, 4, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """A row per step."""
        return self.head(self.rnn(self.inner(x)))


NETWORKS: dict[str, tuple[Callable[[nnx.Rngs], nnx.Module], tuple[int, ...]]] = {
    "ResNet-18": (lambda rngs: ResNet18(stem="cifar", rngs=rngs), IMAGES),
    "MobileNetV2": (MobileNet, IMAGES),
    "DenseNet": (DenseNet, IMAGES),
    "U-Net": (UNet, IMAGES),
    "ResNeXt": (ResNeXt, IMAGES),
    "ShuffleNet": (Shuffle, IMAGES),
    "ViT": (ViT, IMAGES),
    "grouped queries": (GroupedQueries, IMAGES),
    "LSTM": (Recurrent, SEQUENCES),
}


def build(name: str, seed: int) -> tuple[Callable[..., Any], Any, np.ndarray]:
    """A network's function, parameters and an input."""
    make, shape = NETWORKS[name]
    module = make(nnx.Rngs(seed))
    module.eval()
    f, params = jaxeff.functional(module)
    keys = iter(jax.random.split(jax.random.key(seed), len(jax.tree.leaves(params))))
    # Biases and tokens are zero at first; no channel should be nothing.
    params = jax.tree.map(lambda w: w + 0.1 * jax.random.normal(next(keys), w.shape), params)
    return f, params, np.random.default_rng(seed).standard_normal(shape, np.float32)


def _conv(inner: int, out: int, size: int, rngs: nnx.Rngs, groups: int = 1) -> nnx.Conv:
    return nnx.Conv(inner, out, (size, size), feature_group_count=groups, rngs=rngs)


class ResNet50(nnx.Module):
    """The network itself (arXiv 1512.03385), for 224x224 images."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Makes the layers."""
        self.stem, self.stem_bn = _plain(3, 64, 7, rngs, 2), nnx.BatchNorm(64, rngs=rngs)
        blocks, inner = [], 64
        for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for i in range(depth):
                strides = 2 if width > 64 and not i else 1
                blocks.append(Bottleneck(inner, width, strides, rngs))
                inner = 4 * width
        self.blocks, self.head = nnx.List(blocks), nnx.Linear(inner, 1000, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits."""
        x = jax.nn.relu(self.stem_bn(self.stem(x)))
        x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class Bottleneck(nnx.Module):
    """1x1, 3x3, 1x1 and the shortcut around them."""

    def __init__(self, inner: int, width: int, strides: int, rngs: nnx.Rngs) -> None:
        """Makes the layers."""
        out = 4 * width
        self.conv1, self.bn1 = _plain(inner, width, 1, rngs), nnx.BatchNorm(width, rngs=rngs)
        self.conv2 = _plain(width, width, 3, rngs, strides)
        self.bn2 = nnx.BatchNorm(width, rngs=rngs)
        self.conv3, self.bn3 = _plain(width, out, 1, rngs), nnx.BatchNorm(out, rngs=rngs)
        self.project = (inner, strides) != (out, 1)
        if self.project:
            self.shortcut = _plain(inner, out, 1, rngs, strides)
            self.bn_shortcut = nnx.BatchNorm(out, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The block's output."""
        y = jax.nn.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(jax.nn.relu(self.bn2(self.conv2(y)))))
        return jax.nn.relu(y + (self.bn_shortcut(self.shortcut(x)) if self.project else x))


def _plain(inner: int, out: int, size: int, rngs: nnx.Rngs, strides: int = 1) -> nnx.Conv:
    return nnx.Conv(inner, out, (size, size), strides=strides, use_bias=False, rngs=rngs)
