"""Networks of many kinds, with inputs; parameters are random, so no channel is nothing."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

import jaxeff
from jaxeff.nn import LeNet5, LinenMLP, ResNet18
from jaxeff.nn.resnet18 import Block

RNGS = nnx.Rngs(0)


class Mobile(nnx.Module):
    """Depthwise, grouped, squeeze-and-excite, concatenation, hard activations."""

    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 16, (3, 3), rngs=rngs)
        self.depthwise = nnx.Conv(16, 16, (3, 3), feature_group_count=16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.grouped = nnx.Conv(16, 32, (3, 3), feature_group_count=4, rngs=rngs)
        self.squeeze = nnx.Linear(32, 8, rngs=rngs)
        self.excite = nnx.Linear(8, 32, rngs=rngs)
        self.point = nnx.Conv(16, 24, (1, 1), rngs=rngs)
        self.head = nnx.Linear(56, 5, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu6(self.norm(self.depthwise(self.stem(x))))
        y = jax.nn.hard_swish(self.grouped(x))
        gate = jax.nn.sigmoid(self.excite(jax.nn.relu(self.squeeze(y.mean((1, 2))))))
        y = y * gate[:, None, None]
        return self.head(jnp.concatenate([y, self.point(x)], -1).mean((1, 2)))


class Shuffled(nnx.Module):
    """Channels of two groups are shuffled between grouped convolutions, and split in halves."""

    def __init__(self, rngs):
        self.first = nnx.Conv(3, 16, (3, 3), feature_group_count=1, rngs=rngs)
        self.second = nnx.Conv(16, 16, (1, 1), feature_group_count=2, rngs=rngs)
        self.third = nnx.Conv(16, 16, (1, 1), feature_group_count=2, rngs=rngs)
        self.right = nnx.Conv(8, 8, (3, 3), rngs=rngs)
        self.head = nnx.Linear(16, 5, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.second(jax.nn.relu(self.first(x))))
        b, h, w, c = x.shape
        x = x.reshape(b, h, w, 2, c // 2).swapaxes(3, 4).reshape(b, h, w, c)
        x = self.third(x)
        left, right = jnp.split(x, 2, -1)
        return self.head(jnp.concatenate([left, self.right(right)], -1).mean((1, 2)))


class UNet(nnx.Module):
    """Down, up by a transposed convolution, joined by concatenation."""

    def __init__(self, rngs):
        self.down = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.deep = nnx.Conv(8, 16, (3, 3), strides=2, rngs=rngs)
        self.up = nnx.ConvTranspose(16, 8, (2, 2), strides=(2, 2), rngs=rngs)
        self.out = nnx.Conv(16, 2, (1, 1), rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.down(x))
        y = jax.nn.relu(self.up(jax.nn.relu(self.deep(x))))
        return self.out(jnp.concatenate([x, y], -1))


class Dense(nnx.Module):
    """Dense blocks: every layer reads all before it."""

    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 8, (3, 3), rngs=rngs)
        self.layers = nnx.List([nnx.Conv(8 + 4 * i, 4, (3, 3), rngs=rngs) for i in range(3)])
        self.head = nnx.Linear(20, 5, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = jnp.concatenate([x, jax.nn.relu(layer(x))], -1)
        return self.head(x.mean((1, 2)))


class Residual(nnx.Module):
    """Two residual blocks with projections."""

    def __init__(self, rngs):
        self.first, self.second = Block(3, 8, 1, True, rngs=rngs), Block(8, 12, 2, True, rngs=rngs)
        self.head = nnx.Linear(12, 5, rngs=rngs)

    def __call__(self, x):
        return self.head(self.second(self.first(x)).mean((1, 2)))


class Attention(nnx.Module):
    """Multi-head attention and a gated unit on a residual stream, embeddings tied, no norms."""

    def __init__(self, rngs):
        self.embedding = nnx.Embed(20, 16, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, 16, qkv_features=24, decode=False, rngs=rngs)
        self.gate = nnx.Linear(16, 32, rngs=rngs)
        self.up = nnx.Linear(16, 32, rngs=rngs)
        self.down = nnx.Linear(32, 16, rngs=rngs)

    def __call__(self, tokens):
        x = self.embedding(tokens)
        x = x + self.attention(x)
        x = x + self.down(jax.nn.silu(self.gate(x)) * self.up(x))
        return self.embedding.attend(x)


class Grouped(nnx.Module):
    """Grouped queries with rotary halves; heads only show in reshapes."""

    def __init__(self, rngs):
        self.inner = nnx.Linear(5, 16, rngs=rngs)
        self.q = nnx.Linear(16, 64, rngs=rngs)
        self.k, self.v = nnx.Linear(16, 16, rngs=rngs), nnx.Linear(16, 16, rngs=rngs)
        self.o, self.head = nnx.Linear(64, 16, rngs=rngs), nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x):
        x = self.inner(x)
        b, t, _ = x.shape
        q = self.q(x).reshape(b, t, 8, 8)
        k, v = (jnp.repeat(p(x).reshape(b, t, 2, 8), 4, 2) for p in (self.k, self.v))

        def rotated(z):
            one, two = jnp.split(z, 2, -1)
            angle = jnp.arange(t)[:, None, None] / 7.0
            sin, cos = jnp.sin(angle), jnp.cos(angle)
            return jnp.concatenate([one * cos - two * sin, one * sin + two * cos], -1)

        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", rotated(q), rotated(k)))
        y = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(b, t, 64)
        return self.head(x + self.o(y))


class Recurrent(nnx.Module):
    """A cell in a loop over time."""

    def __init__(self, cell, rngs):
        self.rnn = nnx.RNN(cell)
        self.head = nnx.Linear(12, 4, rngs=rngs)

    def __call__(self, x):
        return self.head(self.rnn(x)[:, -1])


class Linen(nn.Module):
    """Linen, a layer used twice and a global mean."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3), name="first")(x))
        again = nn.Conv(8, (3, 3), name="again")
        x = again(nn.relu(again(x)))
        return nn.Dense(5)(x.mean((1, 2)))


def stacked(params, x):
    """A scan over stacked layers of a residual stream."""
    x = x @ params["in"]

    def layer(x, w):
        return x + jax.nn.gelu(x @ w["up"] + w["bias"]) @ w["down"], None

    x, _ = jax.lax.scan(layer, x, params["layers"])
    return x @ params["out"]


def _nnx(module, x):
    module.eval()
    f, params = jaxeff.functional(module)
    return f, _drawn(params), (x,)


def _drawn(params):
    leaves, structure = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(7), len(leaves))
    drawn = [w + 0.1 * jax.random.normal(k, w.shape) for k, w in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def _stacked():
    shapes = {
        "in": (5, 8), "out": (8, 3),
        "layers": {"up": (4, 8, 12), "bias": (4, 12), "down": (4, 12, 8)},
    }  # fmt: skip
    params = jax.tree.map(jnp.zeros, shapes, is_leaf=lambda s: isinstance(s, tuple))
    return stacked, _drawn(params), (jax.random.normal(KEY, (2, 5)),)


KEY = jax.random.key(1)
IMAGE = jax.random.normal(KEY, (2, 8, 8, 3))
SEQUENCE = jax.random.normal(KEY, (2, 6, 5))


def _linen(module, x):
    f, params = jaxeff.functional(module, module.init(KEY, x))
    return f, _drawn(params), (x,)


NETWORKS = {
    "lenet": lambda: _nnx(LeNet5(rngs=RNGS), jax.random.normal(KEY, (2, 28, 28, 1))),
    "residual": lambda: _nnx(Residual(RNGS), IMAGE),
    "mobile": lambda: _nnx(Mobile(RNGS), IMAGE),
    "shuffled": lambda: _nnx(Shuffled(RNGS), IMAGE),
    "unet": lambda: _nnx(UNet(RNGS), IMAGE),
    "dense": lambda: _nnx(Dense(RNGS), IMAGE),
    "attention": lambda: _nnx(Attention(RNGS), jnp.arange(12).reshape(2, 6)),
    "grouped queries": lambda: _nnx(Grouped(RNGS), SEQUENCE),
    "lstm": lambda: _nnx(Recurrent(nnx.LSTMCell(5, 12, rngs=RNGS), RNGS), SEQUENCE),
    "gru": lambda: _nnx(Recurrent(nnx.GRUCell(5, 12, rngs=RNGS), RNGS), SEQUENCE),
    "scan": _stacked,
    "linen": lambda: _linen(Linen(), IMAGE),
    "linen mlp": lambda: _linen(LinenMLP((20, 16, 4)), jax.random.normal(KEY, (2, 20))),
}
__all__ = ["NETWORKS", "ResNet18"]
