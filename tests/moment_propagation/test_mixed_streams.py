"""Streams that dense layers mix along two axes, own sums and narrow codes are named, no others."""

import warnings
from itertools import pairwise

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax import lax

from jaxeff import Gaussian, MomentsWarning, moments

KEY = jax.random.key(0)
X = jax.random.normal(KEY, (2, 5, 4))
BLOCK = {"tokens": jnp.eye(5), "channels": jnp.eye(4)}


def by_tokens(w, x):
    return jnp.swapaxes(nnx.gelu(jnp.swapaxes(x, 1, 2) @ w), 1, 2)


def mixer(params, x):
    for block in params:
        x = x + by_tokens(block["tokens"], x)
        x = nnx.gelu(x @ block["channels"]) + x
    return x


def of_einsum(params, x):
    for block in params:
        x = x + jnp.einsum("btc,tu->buc", jnp.tanh(x), block["tokens"])
        x = x + jnp.tanh(x) @ block["channels"]
    return x


def scanned(params, x):
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)
    return lax.scan(lambda x, block: (mixer([block], x), None), x, stacked)[0]


def channels_alone(params, x):
    for block in params:
        x = x + nnx.gelu(x @ block["channels"])
    return x


def no_stream(params, x):
    for block in params:
        x = nnx.gelu(by_tokens(block["tokens"], x) @ block["channels"])
    return x


def branches(params, x):
    return x @ params[0]["channels"] + by_tokens(params[1]["tokens"], X)


def posterior(*names):
    """Two blocks whose leaves of these names are random."""
    return [
        {n: Gaussian(w, jnp.full_like(w, 0.01)) if n in names else w for n, w in BLOCK.items()}
    ] * 2


@pytest.mark.parametrize("f", [mixer, of_einsum, scanned])
@pytest.mark.parametrize("name", BLOCK)
def test_a_stream_that_is_mixed_along_two_axes_is_named_once(f, name):
    with pytest.warns(MomentsWarning, match="and of layers along another axis") as caught:
        jax.eval_shape(moments(f), posterior(name), X)
    assert len(caught) == 1


@pytest.mark.parametrize(
    ("f", "names"),
    [
        (channels_alone, ("channels",)),
        (no_stream, ("tokens", "channels")),
        (branches, ("tokens", "channels")),
        (mixer, ()),
    ],
)
def test_others_are_taken_without_a_word(f, names):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(moments(f), posterior(*names), X)
        # Noise of an input is another one at every entry.
        jax.eval_shape(moments(f), posterior(), Gaussian(X, jnp.full_like(X, 0.01)))
        jax.eval_shape(moments(mixer, shared=False), posterior(*BLOCK), X)


EDGES = jnp.array([0, 0, 1, 2, 2])


def graph_attention(w, x, sums=lambda e: jax.ops.segment_sum(e, EDGES, 3)[EDGES]):
    """Scores of edges over the sums of a node's, and what they weigh."""
    scores = jnp.exp(x @ w["channels"][:, 0])
    weighed = (scores / (sums(scores) + 1e-9))[:, None] * (x @ w["channels"])
    return jax.ops.segment_sum(weighed, EDGES, 3)


def test_a_quotient_by_own_sums_over_segments_is_named():
    w, x = {"channels": Gaussian(jnp.ones((4, 4)), jnp.ones((4, 4)))}, jnp.ones((5, 4))
    with pytest.warns(
        MomentsWarning, match=r"'div'.*own sums over segments.*too large.*method='linear'"
    ):
        jax.eval_shape(moments(graph_attention), w, x)


@pytest.mark.parametrize(
    "f",
    [
        lambda w, x: graph_attention(w, x, lambda e: jax.ops.segment_sum(x[:, 0], EDGES, 3)[EDGES]),
        lambda w, x: jax.nn.softmax(x @ w["channels"]) / (1 + (x @ w["channels"]) ** 2),
    ],
    ids=["sums of data", "softmax"],
)
def test_other_quotients_are_not_warned_of(f):
    w, x = {"channels": Gaussian(jnp.ones((4, 4)), jnp.ones((4, 4)))}, jnp.ones((5, 4))
    jax.eval_shape(moments(f), w, x)


# Narrow codes -------------------------------------------------------------------------------------


def decoder(w, code, other=0.0):
    return nnx.relu(nnx.relu(code @ w[0] + other) @ w[1]) @ w[2]


def decoder_weights(entries):
    keys, sizes = jax.random.split(KEY, 3), (entries, 64, 64, 8)
    pairs = zip(keys, pairwise(sizes), strict=True)
    return [jax.random.normal(key, (n, m)) / n**0.5 for key, (n, m) in pairs]


def random_values(entries):
    mean = jax.random.normal(jax.random.key(1), (64, entries))
    return Gaussian(mean, jnp.full_like(mean, 0.05**2))


@pytest.mark.slow
@pytest.mark.parametrize("entries", [1, 4, 6])
def test_variances_behind_a_narrow_code_are_off_and_it_is_named(entries):
    w, code = decoder_weights(entries), random_values(entries)
    with pytest.warns(MomentsWarning, match=f"adds up what '0' makes of only {entries} random"):
        ours = moments(decoder)(w, code).var
    drawn = jax.vmap(lambda x: decoder(w, x))(code.sample(jax.random.key(2), (1000,))).var(0)
    low, median, high = jnp.quantile(ours / drawn, jnp.array([0.05, 0.5, 0.95]))
    # The errors of 1,000 draws are 4 %.
    assert median > 1.1
    assert low < 0.7
    assert high > 3


def test_wide_codes_and_codes_in_other_noise_are_not_warned_of():
    cases = [
        (random_values(16),),
        (random_values(4), random_values(64)),  # of an image, say
        (random_values(4).mean,),
    ]
    for args in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("error", MomentsWarning)
            jax.eval_shape(moments(decoder), decoder_weights(args[0].shape[-1]), *args)
