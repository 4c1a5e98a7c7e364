"""Networks of sequences: a decoder with a cache, an encoder-decoder, speech, LSTM, state space."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.beyond.zoo.models.images import EncoderBlock

WORDS = 32


class T5(nnx.Module):
    """An encoder with relative positions and a decoder that attends to it; no biases."""

    def __init__(self, rngs: nnx.Rngs):
        """Builds the layers."""
        attention: dict[str, Any] = {"use_bias": False, "decode": False, "rngs": rngs}
        self.embed = nnx.Embed(WORDS, 16, rngs=rngs)
        self.relative = nnx.Embed(15, 2, rngs=rngs)
        self.norms = nnx.List([nnx.RMSNorm(16, rngs=rngs) for _ in range(7)])
        self.encoder = nnx.MultiHeadAttention(2, 16, **attention)
        self.decoder = nnx.MultiHeadAttention(2, 16, **attention)
        self.cross = nnx.MultiHeadAttention(2, 16, **attention)
        self.up1, self.up2 = (nnx.Linear(16, 32, use_bias=False, rngs=rngs) for _ in range(2))
        self.down1, self.down2 = (nnx.Linear(32, 16, use_bias=False, rngs=rngs) for _ in range(2))
        self.head = nnx.Linear(16, WORDS, use_bias=False, rngs=rngs)

    def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
        """Returns logits of the target's next tokens."""
        x, y = self.embed(source), self.embed(target)
        at = jnp.arange(x.shape[1])
        # A number per head for each distance of two tokens, -7 to 7.
        bias = self.relative(at[:, None] - at[None] + 7).transpose(2, 0, 1)[None]

        def biased(query: jax.Array, key: jax.Array, value: jax.Array, **_: object) -> jax.Array:
            return nnx.dot_product_attention(query, key, value, bias=bias)

        self.encoder.attention_fn = biased
        x = x + self.encoder(self.norms[0](x))
        x = self.norms[2](x + self.down1(nnx.relu(self.up1(self.norms[1](x)))))
        mask = nnx.make_causal_mask(target)
        y = y + self.decoder(self.norms[3](y), mask=mask)
        y = y + self.cross(self.norms[4](y), x)
        y = y + self.down2(nnx.relu(self.up2(self.norms[5](y))))
        return self.head(self.norms[6](y))


class Whisper(nnx.Module):
    """The encoder: two convolutions over time, fixed positions, blocks of attention."""

    def __init__(self, rngs: nnx.Rngs):
        """Builds the layers."""
        self.conv1 = nnx.Conv(8, 16, (3,), rngs=rngs)
        self.conv2 = nnx.Conv(16, 16, (3,), strides=2, rngs=rngs)
        self.blocks = nnx.List([EncoderBlock(16, 2, rngs) for _ in range(2)])
        self.norm = nnx.LayerNorm(16, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns features of spectrograms."""
        x = nnx.gelu(self.conv2(nnx.gelu(self.conv1(x))))
        angle = jnp.arange(x.shape[1])[:, None] / 100.0 ** (jnp.arange(8) / 8)
        x = x + jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], -1)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class Seq2Seq(nnx.Module):
    """An LSTM (or GRU) whose last state starts another, which reads the target."""

    def __init__(self, rngs: nnx.Rngs, cell: type[nnx.LSTMCell] | type[nnx.GRUCell] = nnx.LSTMCell):
        """Builds the layers."""
        self.embed = nnx.Embed(WORDS, 8, rngs=rngs)
        self.encoder = nnx.RNN(cell(8, 16, rngs=rngs), return_carry=True, rngs=rngs)
        self.decoder = nnx.RNN(cell(8, 16, rngs=rngs), rngs=rngs)
        self.head = nnx.Linear(16, WORDS, rngs=rngs)

    def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
        """Returns logits of the target's next tokens."""
        carry, _ = self.encoder(self.embed(source))
        return self.head(self.decoder(self.embed(target), initial_carry=carry))


class Loop(nnx.Module):
    """A GRU over a sequence that stays a loop, with a class at its end."""

    def __init__(self, rngs: nnx.Rngs):
        """Builds the layers."""
        self.recurrent = nnx.RNN(nnx.GRUCell(8, 16, rngs=rngs), rngs=rngs)
        self.head = nnx.Linear(16, 5, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns logits."""
        return self.head(self.recurrent(x)[:, -1])


class Mamba(nnx.Module):
    """A block with a causal convolution and a selective state space, scanned over time."""

    def __init__(self, rngs: nnx.Rngs, width: int = 8, inner: int = 16, state: int = 4):
        """Builds the layers."""
        self.embed = nnx.Embed(WORDS, width, rngs=rngs)
        self.norm = nnx.RMSNorm(width, rngs=rngs)
        self.enter = nnx.Linear(width, 2 * inner, use_bias=False, rngs=rngs)
        self.conv = nnx.Conv(
            inner, inner, (4,), padding="CAUSAL", feature_group_count=inner, rngs=rngs
        )
        self.select = nnx.Linear(inner, 1 + 2 * state, use_bias=False, rngs=rngs)
        self.delta = nnx.Linear(1, inner, rngs=rngs)
        self.decay = nnx.Param(jnp.log(jnp.tile(jnp.arange(1.0, state + 1), (inner, 1))))
        self.skip = nnx.Param(jnp.ones(inner))
        self.leave = nnx.Linear(inner, width, use_bias=False, rngs=rngs)
        self.head = nnx.Linear(width, WORDS, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns logits of the next tokens."""
        residual = self.embed(tokens)
        x, gate = jnp.split(self.enter(self.norm(residual)), 2, -1)
        x = nnx.silu(self.conv(x))
        # h_t = keep_t h_(t-1) + new_t in each channel and state, and y_t = c_t h_t, where keep, new
        # and c depend on the token.
        size = self.decay.shape[1]
        delta, b, c = jnp.split(self.select(x), [1, 1 + size], -1)
        delta = nnx.softplus(self.delta(delta))
        keep = jnp.exp(-delta[..., None] * jnp.exp(self.decay[...]))
        new = (delta * x)[..., None] * b[:, :, None]

        def step(h: jax.Array, at: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            keep_t, new_t = at
            h = keep_t * h + new_t
            return h, h

        start = jnp.zeros(new[:, 0].shape, new.dtype)
        _, h = jax.lax.scan(step, start, (keep.swapaxes(0, 1), new.swapaxes(0, 1)))
        y = (h.swapaxes(0, 1) * c[:, :, None]).sum(-1) + self.skip * x
        return self.head(residual + self.leave(y * nnx.silu(gate)))
