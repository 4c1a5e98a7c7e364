"""What positions share passes sums of branches, parts of arrays, class tokens and scales."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from jaxeff import Gaussian, moments

KEYS = iter(jax.random.split(jax.random.key(5), 20))
IMAGES = jax.random.normal(jax.random.key(1), (2, 4, 4, 3)) + 0.5
TOKENS = jax.random.normal(jax.random.key(2), (2, 16, 5)) + 0.5


def convolved(w, x):
    numbers = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)


def branches(w, images, tokens):
    """Positions of a convolution are other axes than those of a dense layer of tokens."""
    y = convolved(w["conv"], images).reshape(2, 16, 8)
    return nnx.relu(y + tokens @ w["dense"])


def unequal_parts(w, images, tokens):
    first, second = jnp.split(tokens @ w["wide"], (12,), -1)
    return nnx.relu(first) @ w["down"] - second


def class_token(w, images, tokens):
    y = convolved(w["conv"], images).reshape(2, 16, 8)
    y = jnp.concatenate([jnp.broadcast_to(w["token"], (2, 1, 8)), y], 1)
    return nnx.relu(y @ w["square"])[:, 1:]


def two_sources(w, images, tokens):
    """Positions of two layers stand beside each other."""
    y = convolved(w["conv"], images).reshape(2, 16, 8)
    return nnx.relu(jnp.concatenate([y, tokens @ w["dense"]], 1) @ w["square"])


SHAPES = {
    "conv": (3, 3, 3, 8), "dense": (5, 8), "wide": (5, 20), "token": (1, 1, 8), "square": (8, 8),
    "down": (12, 8), "query": (5, 8), "key": (5, 8), "both": (8, 10), "back": (8, 5),
}  # fmt: skip
WEIGHTS = {
    name: jax.random.normal(key, shape) / max(1, np.prod(shape[:-1])) ** 0.5
    for (name, shape), key in zip(SHAPES.items(), KEYS, strict=False)
}
POSTERIOR = {n: Gaussian(w, jnp.full_like(w, (0.05 * w.std()) ** 2)) for n, w in WEIGHTS.items()}


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore::jaxeff.MomentsWarning")
@pytest.mark.parametrize(
    "body",
    [branches, unequal_parts, class_token, two_sources],
)
def test_a_mean_over_positions_sees_what_these_share(body, oracle):
    def f(w, images, tokens):
        return body(w, images, tokens).mean(1)

    args = POSTERIOR, IMAGES, TOKENS
    samples = oracle.monte_carlo(f, args, 4000, 1000)
    ours, diagonal = (jax.jit(moments(f, shared=s))(*args) for s in (True, False))
    # 4000 draws know each variance to 2.2 %.
    ratio, without = (np.asarray(one.var).sum() / samples.var.sum() for one in (ours, diagonal))
    assert abs(ratio - 1) < 0.12
    assert without < 0.6


def test_parts_of_what_was_pooled_cost_nothing():
    """Modulations of tokens: they aren't followed, so the tokens aren't either."""

    def f(w, tokens):
        scale, shift = jnp.split((tokens @ w["dense"]).mean(1, keepdims=True) @ w["both"], 2, -1)
        y = nnx.relu(tokens * (1 + scale)) @ w["query"]
        return nnx.relu(nnx.relu(y) @ w["back"] + shift) @ w["key"]

    w = {name: POSTERIOR[name] for name in ("dense", "both", "back", "query", "key")}
    followed, diagonal = (jax.jit(moments(f, shared=s)).lower(w, TOKENS) for s in (True, False))
    costs = [one.cost_analysis()["flops"] for one in (followed, diagonal)]
    assert costs[0] < 1.5 * costs[1]
