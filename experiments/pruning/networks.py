"""The networks of `wirings` in Flax, and a ResNet-50."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxeff
from experiments.pruning.wirings import IMAGES, RESIDUAL, WIRINGS, Wiring
from jaxeff.nn import ResNet18


def _conv(rngs: nnx.Rngs, inner: int, out: int, size: int = 1, groups: int = 1) -> nnx.Conv:
    return nnx.Conv(inner, out, (size, size), feature_group_count=groups, rngs=rngs)


LAYERS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "patches": lambda rngs, inner, out, size: nnx.Conv(
        inner, out, (size, size), strides=size, padding="VALID", rngs=rngs
    ),
    "doubled": lambda rngs, inner, out: nnx.ConvTranspose(
        inner, out, (2, 2), strides=(2, 2), rngs=rngs
    ),
    "linear": lambda rngs, inner, out: nnx.Linear(inner, out, rngs=rngs),
    "batch_norm": lambda rngs, width: nnx.BatchNorm(width, rngs=rngs),
    "layer_norm": lambda rngs, width: nnx.LayerNorm(width, rngs=rngs),
    "parameter": lambda rngs, *shape: nnx.Param(jnp.zeros(shape)),
    "lstm": lambda rngs, inner, out: nnx.RNN(nnx.OptimizedLSTMCell(inner, out, rngs=rngs)),
}


def _shuffle(x: jax.Array, groups: int) -> jax.Array:
    b, h, w, c = x.shape
    return x.reshape(b, h, w, groups, c // groups).swapaxes(3, 4).reshape(b, h, w, c)


def _tokens(net: Any, x: jax.Array) -> jax.Array:
    x = x.reshape(x.shape[0], 16, -1)
    token = jnp.broadcast_to(net.token[...], (x.shape[0], 1, x.shape[-1]))
    return jnp.concatenate([token, x], 1) + net.position[...]


FUNCTIONS = SimpleNamespace(
    relu=jax.nn.relu, relu6=jax.nn.relu6, gelu=jax.nn.gelu, softmax=jax.nn.softmax,
    einsum=jnp.einsum, join=lambda parts: jnp.concatenate(parts, -1),
    mean=lambda x: x.mean((1, 2)), max_pool=lambda x: nnx.max_pool(x, (2, 2), strides=(2, 2)),
    run=lambda rnn, x: rnn(x), shuffle=_shuffle, tokens=_tokens,
)  # fmt: skip


class Wired(nnx.Module):
    """A network of `WIRINGS`."""

    def __init__(self, wiring: Wiring, rngs: nnx.Rngs) -> None:
        self.forward = wiring.forward
        for name, (kind, *sizes) in wiring.layers.items():
            setattr(self, name, LAYERS[kind](rngs, *sizes))

    def __call__(self, x: jax.Array) -> Any:
        """Results."""
        return self.forward(FUNCTIONS, self, x)


NAMES = (RESIDUAL, *WIRINGS)


def build(name: str, seed: int) -> tuple[Callable[..., Any], Any, np.ndarray]:
    """A network's function, parameters and an input."""
    module: nnx.Module = (
        ResNet18(stem="cifar", rngs=nnx.Rngs(seed))
        if name == RESIDUAL
        else Wired(WIRINGS[name], nnx.Rngs(seed))
    )
    shape = WIRINGS[name].shape if name in WIRINGS else IMAGES
    module.eval()
    f, params = jaxeff.functional(module)
    keys = iter(jax.random.split(jax.random.key(seed), len(jax.tree.leaves(params))))
    # Biases and tokens are zero at first; no channel should be nothing.
    params = jax.tree.map(lambda w: w + 0.1 * jax.random.normal(next(keys), w.shape), params)
    return f, params, np.random.default_rng(seed).standard_normal(shape, np.float32)


class ResNet50(nnx.Module):
    """The network itself (arXiv 1512.03385), for 224x224 images."""

    def __init__(self, rngs: nnx.Rngs) -> None:
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
