"""Sequences: recurrent cells by scan, attention of every kind, decoding."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax import lax

from tests.conformance.programs.family import Family, integers, normal, uniform

FAMILY = Family("sequences")
program = FAMILY.program


@program(normal(10, 4, 6), normal(6, 8), normal(8, 8, scale=0.3), normal(8))
def _recurrent_network(xs, w, u, b):
    def step(h, x):
        h = jnp.tanh(x @ w + h @ u + b)
        return h, h

    return lax.scan(step, jnp.zeros((4, 8)), xs)


def gru(h, x, w, u, b):
    """One step of a gated recurrent unit."""
    gx, gh = jnp.split(x @ w + b, 3, -1), jnp.split(h @ u, 3, -1)
    r, z = jax.nn.sigmoid(gx[0] + gh[0]), jax.nn.sigmoid(gx[1] + gh[1])
    return (1 - z) * jnp.tanh(gx[2] + r * gh[2]) + z * h


def lstm(carry, x, w, u, b):
    """One step of a long short-term memory."""
    h, c = carry
    i, f, g, o = jnp.split(x @ w + h @ u + b, 4, -1)
    c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


GRU = (normal(28, 4, 6), normal(6, 24), normal(8, 24, scale=0.3), normal(24))
LSTM = (normal(28, 4, 6), normal(6, 32), normal(8, 32, scale=0.3), normal(32))


@program(*GRU)
def _gru_by_scan(xs, w, u, b):
    return lax.scan(lambda h, x: (gru(h, x, w, u, b),) * 2, jnp.zeros((4, 8)), xs)


@program(*LSTM)
def _lstm_by_scan(xs, w, u, b):
    def step(carry, x):
        carry = lstm(carry, x, w, u, b)
        return carry, carry[0]

    return lax.scan(step, (jnp.zeros((4, 8)), jnp.zeros((4, 8))), xs)


@program(normal(100, 1, 64), normal(64, 256, scale=0.1), normal(64, 256, scale=0.1), normal(256))
def _long_lstm(xs, w, u, b):
    def step(carry, x):
        carry = lstm(carry, x, w, u, b)
        return carry, carry[0]

    return lax.scan(step, (jnp.zeros((1, 64)), jnp.zeros((1, 64))), xs)


@program(*GRU)
def _gradient_of_a_gru(xs, w, u, b):
    def loss(w, u, b):
        return lax.scan(lambda h, x: (gru(h, x, w, u, b), None), jnp.zeros((4, 8)), xs)[0].sum()

    return jax.value_and_grad(loss, (0, 1, 2))(w, u, b)


@program(*LSTM)
def _gradient_of_an_lstm(xs, w, u, b):
    def loss(w, u, b):
        start = (jnp.zeros((4, 8)), jnp.zeros((4, 8)))
        (h, _), _ = lax.scan(lambda c, x: (lstm(c, x, w, u, b), None), start, xs)
        return jnp.mean(h**2)

    return jax.grad(loss, (0, 1, 2))(w, u, b)


@program(normal(20, 3, 6), normal(2, 6, 24), normal(2, 8, 24, scale=0.3), normal(2, 24))
def _bidirectional_gru(xs, w, u, b):
    def run(i, reverse):
        step = lambda h, x: (gru(h, x, w[i], u[i], b[i]),) * 2  # noqa: E731
        return lax.scan(step, jnp.zeros((3, 8)), xs, reverse=reverse)[1]

    return jnp.concatenate([run(0, False), run(1, True)], -1)


@program(normal(2, 8, 16))
def _stacked_layers_by_scan(x):
    ws = 0.2 * jnp.cos(jnp.arange(12 * 256.0)).reshape(12, 16, 16)
    return lax.scan(lambda h, w: (h + jax.nn.gelu(h @ w), h.mean()), x, ws)


class _Rnn(nn.Module):
    @nn.compact
    def __call__(self, x, lengths):
        y: jax.Array = nn.RNN(nn.OptimizedLSTMCell(12))(x, seq_lengths=lengths)  # type: ignore
        return nn.Dense(3)(nn.RNN(nn.GRUCell(8))(y))


@FAMILY.built
def _recurrent_network_in_linen():
    x = np.random.RandomState(0).rand(3, 9, 5).astype(np.float32)
    model, lengths = _Rnn(), np.array([9, 4, 6], np.int32)
    return model.apply, (model.init(jax.random.key(0), x, lengths), x, lengths)


QKV = (normal(2, 7, 4, 8), normal(2, 7, 4, 8), normal(2, 7, 4, 8))


@program(*QKV)
def _dot_product_attention(q, k, v):
    return jax.nn.dot_product_attention(q, k, v)


@program(*QKV)
def _causal_attention(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


@program(normal(2, 7, 8, 8), normal(2, 9, 2, 8), normal(2, 9, 2, 8))
def _grouped_query_attention(q, k, v):
    return jax.nn.dot_product_attention(q, k, v)


@program(*QKV, integers(2, low=1, high=8))
def _attention_with_padding_mask(q, k, v, lengths):
    mask = jnp.arange(7)[None, None, None] < lengths[:, None, None, None]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(8.0)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.where(mask, scores, -1e9)), v)


@program(*QKV)
def _gradient_of_attention(q, k, v):
    def loss(*qkv):
        return jnp.sum(jax.nn.dot_product_attention(*qkv, is_causal=True) ** 2)

    return jax.grad(loss, (0, 1, 2))(q, k, v)


@program(*QKV)
def _linear_attention(q, k, v):
    q, k = jax.nn.elu(q) + 1, jax.nn.elu(k) + 1
    state = jnp.cumsum(jnp.einsum("bthd,bthe->bthde", k, v), 1)
    total = jnp.einsum("bthd,bthd->bth", q, jnp.cumsum(k, 1))
    return jnp.einsum("bthd,bthde->bthe", q, state) / total[..., None]


@program(normal(2, 9, 4, 8))
def _rotary_position_embedding(x):
    angles = jnp.arange(9)[:, None] / 10000 ** (jnp.arange(4) / 4)
    sin, cos = jnp.sin(angles)[None, :, None], jnp.cos(angles)[None, :, None]
    a, b = jnp.split(x, 2, -1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


@program(integers(high=6), normal(1, 2, 8), normal(1, 12, 2, 8), normal(1, 12, 2, 8))
def _attention_with_key_value_cache(position, x, keys, values):
    keys = lax.dynamic_update_slice(keys, x[:, None], (0, position, 0, 0))
    values = lax.dynamic_update_slice(values, 2 * x[:, None], (0, position, 0, 0))
    scores = jnp.einsum("bhd,bkhd->bhk", x, keys)
    scores = jnp.where(jnp.arange(12) <= position, scores, -jnp.inf)
    return jnp.einsum("bhk,bkhd->bhd", jax.nn.softmax(scores), values), keys


@program(integers(3, high=20), normal(20, 16), normal(16, 16, scale=0.3), normal(16, 20))
def _greedy_decoding(token, embedding, w, head):
    def step(carry, _):
        h, token = carry
        h = jnp.tanh(embedding[token] + h @ w)
        token = jnp.argmax(h @ head, -1).astype(jnp.int32)
        return (h, token), token

    return lax.scan(step, (jnp.zeros((3, 16)), token), length=10)[1]


@program(normal(8, 20), normal(20, 20))
def _beam_search(start, transition):
    def step(carry, _):
        scores, tokens = carry
        together = scores[:, None] + jax.nn.log_softmax(transition)[tokens]
        scores, best = lax.top_k(together.reshape(-1), 4)
        return (scores, best % 20), (best // 20, best % 20)

    scores, tokens = lax.top_k(jax.nn.log_softmax(start[0]), 4)
    return lax.scan(step, (scores, tokens), length=6)


@program(normal(2, 12, 5), integers(2, 4, low=1, high=5))
def _ctc_loss(logits, labels):
    import optax

    return optax.ctc_loss(logits, jnp.zeros((2, 12)), labels, jnp.zeros((2, 4)))


@program(normal(30, 6), normal(6, 6), normal(6))
def _viterbi(emissions, transitions, start):
    def forward(score, emission):
        together = score[:, None] + transitions
        return together.max(0) + emission, together.argmax(0)

    last, back = lax.scan(forward, start + emissions[0], emissions[1:])
    path = lax.scan(lambda s, b: (b[s], b[s]), last.argmax(), back, reverse=True)[1]
    return path, last.max()


@program(uniform(16, 3, low=0.5), normal(16, 3))
def _linear_recurrence_by_associative_scan(a, b):
    def combine(x, y):
        return x[0] * y[0], x[1] * y[0] + y[1]

    return lax.associative_scan(combine, (a, b))[1]


@program(uniform(24, 4, low=0.1), normal(24, 4), normal(4, 4), normal(4))
def _state_space_layer(delta, x, a, c):
    def step(h, inputs):
        d, u = inputs
        h = jnp.exp(-d[:, None] * jnp.exp(a)) * h + (d * u)[:, None]
        return h, h @ c

    return lax.scan(step, jnp.zeros((4, 4)), (delta, x))[1]
