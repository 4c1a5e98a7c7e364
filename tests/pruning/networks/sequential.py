"""Attention, mixers, recurrent cells and loops over layers."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxeff.nn import LinenMLP
from tests.pruning.networks.making import IMAGE, SEQUENCE, TOKENS, Network, drawn, of_linen, of_nnx


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
    """Grouped queries with rotary halves, heads only in reshapes; with one key, multi-query."""

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


def linear(inner, out, rngs):
    return nnx.Linear(inner, out, rngs=rngs)


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


class Encoder(nnx.Module):
    """Attention and two layers, each after a layer norm and around it a shortcut."""

    def __init__(self, rngs, width=12, heads=3, inside=12, hidden=20):
        self.norm1, self.norm2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            heads, width, qkv_features=inside, decode=False, rngs=rngs
        )
        self.up, self.down = linear(width, hidden, rngs), linear(hidden, width, rngs)

    def __call__(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(jax.nn.gelu(self.up(self.norm2(x))))


class ViT(nnx.Module):
    """Patches, a class token, positions, an encoder."""

    def __init__(self, rngs, width=12, **sizes):
        self.patch = nnx.Conv(3, width, (4, 4), strides=4, padding="VALID", rngs=rngs)
        self.token = nnx.Param(jnp.ones((1, 1, width)))
        self.position = nnx.Param(jnp.ones((1, 5, width)))
        self.block = Encoder(rngs, width, **sizes)
        self.norm, self.head = nnx.LayerNorm(width, rngs=rngs), linear(width, 5, rngs)

    def __call__(self, x):
        x = self.patch(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        token = jnp.broadcast_to(self.token[...], (x.shape[0], 1, x.shape[-1]))
        x = jnp.concatenate([token, x], 1) + self.position[...]
        return self.head(self.norm(self.block(x))[:, 0])


class Llama(nnx.Module):
    """RMS norms, rotary grouped queries, a gated unit, tied embeddings."""

    def __init__(self, rngs, width=16, keys=2, each=4, size=4, values=4, hidden=24):
        self.embedding = nnx.Embed(20, width, rngs=rngs)
        self.norm1, self.norm2 = nnx.RMSNorm(width, rngs=rngs), nnx.RMSNorm(width, rngs=rngs)
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.keys, self.each = keys, each
        self.q, self.k = linear(width, keys * each * size, rngs), linear(width, keys * size, rngs)
        self.v, self.o = (
            linear(width, keys * values, rngs),
            linear(keys * each * values, width, rngs),
        )
        self.gate, self.up = linear(width, hidden, rngs), linear(width, hidden, rngs)
        self.down = linear(hidden, width, rngs)

    def __call__(self, tokens):
        x = self.embedding(tokens)
        y = self.norm1(x)
        b, t, _ = y.shape
        q = rotated(self.q(y).reshape(b, t, self.keys * self.each, -1))
        k = rotated(self.k(y).reshape(b, t, self.keys, -1))
        v = self.v(y).reshape(b, t, self.keys, -1)
        q = q.reshape(b, t, self.keys, self.each, -1) / q.shape[-1] ** 0.5
        weights = jax.nn.softmax(jnp.einsum("btnhd,bsnd->bnhts", q, k))
        y = jnp.einsum("bnhts,bsnd->btnhd", weights, v)
        x = x + self.o(y.reshape(b, t, -1))
        y = self.norm2(x)
        x = x + self.down(jax.nn.silu(self.gate(y)) * self.up(y))
        return self.embedding.attend(self.norm(x))


class Mixer(nnx.Module):
    """Tokens are mixed, then channels."""

    def __init__(self, rngs, width=12, tokens=7, hidden=20):
        self.patch = nnx.Conv(3, width, (2, 2), strides=2, rngs=rngs)
        self.norm1, self.norm2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.t1, self.t2 = linear(16, tokens, rngs), linear(tokens, 16, rngs)
        self.c1, self.c2 = linear(width, hidden, rngs), linear(hidden, width, rngs)
        self.head = linear(width, 5, rngs)

    def __call__(self, x):
        x = self.patch(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        y = jnp.swapaxes(self.norm1(x), 1, 2)
        x = x + jnp.swapaxes(self.t2(jax.nn.gelu(self.t1(y))), 1, 2)
        x = x + self.c2(jax.nn.gelu(self.c1(self.norm2(x))))
        return self.head(x.mean(1))


class Experts(nnx.Module):
    """A soft mixture of stacked experts, each a gated unit whose halves are one weight."""

    def __init__(self, rngs, width=8, experts=3, hidden=10):
        self.inner, self.router = linear(5, width, rngs), linear(width, experts, rngs)
        self.up = nnx.Param(jnp.ones((experts, width, 2 * hidden)))
        self.down = nnx.Param(jnp.ones((experts, hidden, width)))
        self.head = linear(width, 4, rngs)

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
    """Encoders whose weights are stacked, in a loop."""

    def __init__(self, rngs, width=12, **sizes):
        self.inner = linear(5, width, rngs)

        @nnx.split_rngs(splits=3)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def make(rngs):
            return Encoder(rngs, width, **sizes)

        self.blocks, self.head = make(rngs), linear(width, 4, rngs)

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


def _encoder(prefix, stack, **more):
    """Sizes of an encoder by the groups that they are of; its keys and values are of one size."""
    key, value = f"{prefix}attention/key/kernel", f"{prefix}attention/value/kernel"
    return {
        "heads": f"{key}:{1 + stack}", "each": f"{key}:{2 + stack}",
        "values": f"{value}:{2 + stack}", "hidden": f"{prefix}up/kernel:{1 + stack}", **more,
    }  # fmt: skip


def _inside(make):
    """Gives an encoder the product of heads and what each has."""
    return lambda rngs, heads, each, values, **sizes: make(
        rngs, heads=heads, inside=heads * each, **sizes
    )


def _halves(rngs, half, **sizes):
    return Llama(rngs, size=2 * half, **sizes)


def _two_narrowed(network, x, prefix, axis, width):
    """A network with encoders, whose heads and values are narrowed alike."""
    sizes = _encoder(prefix, axis, width=width)
    return of_nnx(network, x, narrow=_inside(network), alike=("each", "values"), sizes=sizes)


FLAT = np.random.default_rng(4).standard_normal((2, 20), np.float32)

NETWORKS = {
    "attention": lambda: of_nnx(Attention, TOKENS),
    "grouped queries": lambda: of_nnx(Grouped, SEQUENCE),
    "multi-query": lambda: of_nnx(lambda rngs: Grouped(rngs, 4, 1), SEQUENCE),
    "library attention": lambda: of_nnx(Library, SEQUENCE),
    "library multi-query": lambda: of_nnx(lambda rngs: Library(rngs, 4, 1), SEQUENCE),
    "einsum attention": lambda: of_nnx(Linear, SEQUENCE),
    "vit": lambda: _two_narrowed(ViT, IMAGE, "block/", 0, "patch/kernel:3"),
    "llama": lambda: of_nnx(
        Llama,
        TOKENS,
        narrow=_halves,
        sizes={
            "width": "down/kernel:1",
            "keys": "k/kernel:1",
            "each": "q/kernel:1",
            "half": "k/kernel:1#1",
            "values": "v/kernel:1",
            "hidden": "gate/kernel:1",
        },
    ),
    "mixer": lambda: of_nnx(
        Mixer,
        IMAGE,
        narrow=Mixer,
        sizes={"width": "patch/kernel:3", "tokens": "t1/kernel:1", "hidden": "c1/kernel:1"},
    ),
    "experts": lambda: of_nnx(
        Experts,
        SEQUENCE,
        narrow=Experts,
        sizes={"width": "down:2", "experts": "router/kernel:1", "hidden": "up:2"},
    ),
    "shared": lambda: of_nnx(Shared, SEQUENCE),
    "lstm": lambda: of_nnx(lambda rngs: Recurrent(nnx.LSTMCell, rngs), SEQUENCE),
    "fused lstm": lambda: of_nnx(lambda rngs: Recurrent(nnx.OptimizedLSTMCell, rngs), SEQUENCE),
    "gru": lambda: of_nnx(lambda rngs: Recurrent(nnx.GRUCell, rngs), SEQUENCE),
    "linen bidirectional": lambda: of_linen(LinenRecurrent(), SEQUENCE),
    "scanned transformer": lambda: _two_narrowed(
        Scanned, SEQUENCE, "blocks/", 1, "blocks/attention/out/kernel:3"
    ),
    "linen scanned": lambda: of_linen(LinenScanned(), SEQUENCE),
    "scan": _stacked,
    "linen mlp": lambda: of_linen(LinenMLP((20, 16, 4)), FLAT),
}
