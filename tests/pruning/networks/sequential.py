"""Attention, mixers, recurrent cells and loops over layers."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxeff.nn import LinenMLP
from jaxeff.nn.transformer import EncoderBlock
from tests.pruning.networks.making import (
    IMAGE,
    SEQUENCE,
    TOKENS,
    Network,
    drawn,
    of_linen,
    of_nnx,
)


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
    """Grouped queries with rotary halves; heads only show in reshapes. With one key: multi-query."""

    def __init__(self, rngs, heads=8, keys=2):
        self.heads, self.keys = heads, keys
        self.inner = nnx.Linear(5, 16, rngs=rngs)
        self.q = nnx.Linear(16, 8 * heads, rngs=rngs)
        self.k, self.v = nnx.Linear(16, 8 * keys, rngs=rngs), nnx.Linear(16, 8 * keys, rngs=rngs)
        self.o, self.head = nnx.Linear(8 * heads, 16, rngs=rngs), nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x):
        x = self.inner(x)
        b, t, _ = x.shape
        q = rotated(self.q(x).reshape(b, t, self.heads, 8))
        k, v = (p(x).reshape(b, t, self.keys, 8) for p in (self.k, self.v))
        y = self.attended(q, rotated(k), v).reshape(b, t, -1)
        return self.head(x + self.o(y))

    def attended(self, q, k, v):
        k, v = (jnp.repeat(z, self.heads // self.keys, 2) for z in (k, v))
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k))
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


class Library(Grouped):
    """The same by JAX's own attention, with a causal mask."""

    def attended(self, q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def rotated(z):
    """Rotary positions, on halves of a head."""
    one, two = jnp.split(z, 2, -1)
    angle = jnp.arange(z.shape[1], dtype=jnp.float32)[:, None, None] / 7.0
    sin, cos = jnp.sin(angle), jnp.cos(angle)
    return jnp.concatenate([one * cos - two * sin, one * sin + two * cos], -1)


class Linear(nnx.Module):
    """Attention of kernels, positive at zero, written as einsums of one weight for q, k and v."""

    def __init__(self, rngs):
        self.inner = nnx.Linear(5, 12, rngs=rngs)
        self.qkv = nnx.Param(jnp.ones((12, 3, 4, 6)))
        self.out = nnx.Param(jnp.ones((4, 6, 12)))
        self.head = nnx.Linear(12, 3, rngs=rngs)

    def __call__(self, x):
        x = self.inner(x)
        q, k, v = jnp.moveaxis(jnp.einsum("btc,cnhd->btnhd", x, self.qkv[...]), 2, 0)
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 6**0.5)
        y = jnp.einsum("bhqk,bkhd,hdc->bqc", weights, v, self.out[...])
        return self.head(x + y)


class ViT(nnx.Module):
    """Patches, a class token, positions, blocks with layer norms."""

    def __init__(self, rngs, width=12, heads=3, inside=12, hidden=20):
        self.patch = nnx.Conv(3, width, (4, 4), strides=4, padding="VALID", rngs=rngs)
        self.token = nnx.Param(jnp.ones((1, 1, width)))
        self.position = nnx.Param(jnp.ones((1, 5, width)))
        self.norm1 = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            heads, width, qkv_features=inside, decode=False, rngs=rngs
        )
        self.norm2 = nnx.LayerNorm(width, rngs=rngs)
        self.up, self.down = nnx.Linear(width, hidden, rngs=rngs), nnx.Linear(hidden, width, rngs=rngs)
        self.norm, self.head = nnx.LayerNorm(width, rngs=rngs), nnx.Linear(width, 5, rngs=rngs)

    def __call__(self, x):
        x = self.patch(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        token = jnp.broadcast_to(self.token[...], (x.shape[0], 1, x.shape[-1]))
        x = jnp.concatenate([token, x], 1) + self.position[...]
        x = x + self.attention(self.norm1(x))
        x = x + self.down(jax.nn.gelu(self.up(self.norm2(x))))
        return self.head(self.norm(x)[:, 0])


class Llama(nnx.Module):
    """RMS norms, rotary grouped queries, a gated unit, tied embeddings."""

    def __init__(self, rngs, width=16, heads=8, keys=2, hidden=24):
        self.embedding = nnx.Embed(20, width, rngs=rngs)
        self.norm1, self.norm2 = nnx.RMSNorm(width, rngs=rngs), nnx.RMSNorm(width, rngs=rngs)
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.heads, self.keys = heads, keys
        more = {"use_bias": False, "rngs": rngs}
        self.q, self.k = nnx.Linear(width, 4 * heads, **more), nnx.Linear(width, 4 * keys, **more)
        self.v, self.o = nnx.Linear(width, 4 * keys, **more), nnx.Linear(4 * heads, width, **more)
        self.gate, self.up = nnx.Linear(width, hidden, **more), nnx.Linear(width, hidden, **more)
        self.down = nnx.Linear(hidden, width, **more)

    def __call__(self, tokens):
        x = self.embedding(tokens)
        y = self.norm1(x)
        b, t, _ = y.shape
        q = rotated(self.q(y).reshape(b, t, self.heads, 4))
        k = rotated(self.k(y).reshape(b, t, self.keys, 4))
        v = self.v(y).reshape(b, t, self.keys, 4)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True, scale=0.5)
        x = x + self.o(y.reshape(b, t, -1))
        y = self.norm2(x)
        x = x + self.down(jax.nn.silu(self.gate(y)) * self.up(y))
        return self.embedding.attend(self.norm(x))


class Mixer(nnx.Module):
    """Tokens are mixed, then channels."""

    def __init__(self, rngs, width=12, tokens=7, hidden=20):
        self.patch = nnx.Conv(3, width, (2, 2), strides=2, rngs=rngs)
        self.norm1, self.norm2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.t1, self.t2 = nnx.Linear(16, tokens, rngs=rngs), nnx.Linear(tokens, 16, rngs=rngs)
        self.c1, self.c2 = nnx.Linear(width, hidden, rngs=rngs), nnx.Linear(hidden, width, rngs=rngs)
        self.head = nnx.Linear(width, 5, rngs=rngs)

    def __call__(self, x):
        x = self.patch(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        y = jnp.swapaxes(self.norm1(x), 1, 2)
        x = x + jnp.swapaxes(self.t2(jax.nn.gelu(self.t1(y))), 1, 2)
        x = x + self.c2(jax.nn.gelu(self.c1(self.norm2(x))))
        return self.head(x.mean(1))


class Experts(nnx.Module):
    """A soft mixture of stacked experts, each a gated unit whose halves are one weight."""

    def __init__(self, rngs):
        self.inner, self.router = nnx.Linear(5, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)
        self.up, self.down = nnx.Param(jnp.ones((3, 8, 20))), nnx.Param(jnp.ones((3, 10, 8)))
        self.head = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        x = self.inner(x)
        weights = jax.nn.softmax(self.router(x))
        y = nnx.glu(jnp.einsum("btc,ecd->bted", x, self.up[...]))
        y = jnp.einsum("bted,edc->btec", y, self.down[...])
        return self.head(x + jnp.einsum("bte,btec->btc", weights, y))


class Shared(nnx.Module):
    """One block over and over, and a projection that is used both ways."""

    def __init__(self, rngs):
        self.inner = nnx.Linear(5, 12, rngs=rngs)
        self.up, self.down = nnx.Linear(12, 18, rngs=rngs), nnx.Linear(18, 12, rngs=rngs)

    def __call__(self, x):
        x = self.inner(x)
        for _ in range(3):
            x = x + self.down(jax.nn.gelu(self.up(x)))
        return x @ self.inner.kernel[...].T


class Recurrent(nnx.Module):
    """A cell in a loop over time."""

    def __init__(self, cell, rngs):
        self.rnn = nnx.RNN(cell(5, 12, rngs=rngs))
        self.head = nnx.Linear(12, 4, rngs=rngs)

    def __call__(self, x):
        return self.head(self.rnn(x)[:, -1])


class LinenRecurrent(nn.Module):
    """A bidirectional network of two cells."""

    @nn.compact
    def __call__(self, x):
        ahead, back = nn.RNN(nn.OptimizedLSTMCell(8)), nn.RNN(nn.GRUCell(6))
        x = nn.Bidirectional(ahead, back)(x)
        return nn.Dense(4)(nn.Dense(9)(x).max(1))


class Scanned(nnx.Module):
    """Encoder blocks whose weights are stacked, in a loop."""

    def __init__(self, rngs, width=12, hidden=20):
        self.inner = nnx.Linear(5, width, rngs=rngs)

        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs):
            return EncoderBlock(width, 3, hidden, rngs=rngs)

        self.blocks = make(rngs)
        self.head = nnx.Linear(width, 4, rngs=rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        def through(block, x):
            return block(x)

        return self.head(through(self.blocks, self.inner(x)).mean(1))


class LinenLayer(nn.Module):
    """A layer for a loop."""

    @nn.compact
    def __call__(self, x, _):
        y = nn.MultiHeadDotProductAttention(2, qkv_features=8)(x)
        y = nn.Dense(x.shape[-1])(nn.tanh(nn.Dense(14)(y)))
        return x + y, None


class LinenScanned(nn.Module):
    """Layers in a loop, each rematerialized."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(10)(x)
        layer = nn.scan(
            nn.remat(LinenLayer), variable_axes={"params": 0}, split_rngs={"params": True}, length=3
        )
        x, _ = layer()(x, None)
        return nn.Dense(3)(x)


def stacked(params, x):
    """A loop over stacked layers of a residual stream."""
    x = x @ params["in"]

    def layer(x, w):
        return x + jax.nn.gelu(x @ w["up"] + w["bias"]) @ w["down"], None

    x, _ = jax.lax.scan(layer, x, params["layers"])
    return x @ params["out"]


def _stacked():
    shapes = {
        "in": (5, 8), "out": (8, 3),
        "layers": {"up": (4, 8, 12), "bias": (4, 12), "down": (4, 12, 8)},
    }  # fmt: skip
    made = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s, jnp.float32), shapes, is_leaf=lambda s: type(s) is tuple
    )
    return Network(stacked, drawn(made), (SEQUENCE[:, 0],))


FLAT = np.random.default_rng(4).standard_normal((2, 20), np.float32)

NETWORKS = {
    "attention": lambda: of_nnx(Attention, TOKENS),
    "grouped queries": lambda: of_nnx(Grouped, SEQUENCE),
    "multi-query": lambda: of_nnx(lambda rngs: Grouped(rngs, 4, 1), SEQUENCE),
    "library attention": lambda: of_nnx(Library, SEQUENCE),
    "library multi-query": lambda: of_nnx(lambda rngs: Library(rngs, 4, 1), SEQUENCE),
    "einsum attention": lambda: of_nnx(Linear, SEQUENCE),
    "vit": lambda: of_nnx(ViT, IMAGE),
    "llama": lambda: of_nnx(Llama, TOKENS),
    "mixer": lambda: of_nnx(Mixer, IMAGE),
    "experts": lambda: of_nnx(Experts, SEQUENCE),
    "shared": lambda: of_nnx(Shared, SEQUENCE),
    "lstm": lambda: of_nnx(lambda rngs: Recurrent(nnx.LSTMCell, rngs), SEQUENCE),
    "fused lstm": lambda: of_nnx(lambda rngs: Recurrent(nnx.OptimizedLSTMCell, rngs), SEQUENCE),
    "gru": lambda: of_nnx(lambda rngs: Recurrent(nnx.GRUCell, rngs), SEQUENCE),
    "linen bidirectional": lambda: of_linen(LinenRecurrent(), SEQUENCE),
    "scanned transformer": lambda: of_nnx(Scanned, SEQUENCE),
    "linen scanned": lambda: of_linen(LinenScanned(), SEQUENCE),
    "scan": _stacked,
    "linen mlp": lambda: of_linen(LinenMLP((20, 16, 4)), FLAT),
}
