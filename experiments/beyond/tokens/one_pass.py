"""Two published ways that train nothing: adapters made random, and norms of gradients.

- Training-free Bayesian adapters (TFB, Shi et al., arXiv 2412.05723): of a trained update `a b` the
  second factor is taken apart, `b = v d u` with singular values d. The update stays the same with
  the factors `a v` and `d u`, and noise of deviation `s / d_k` on column k of the first one moves
  it by noise of deviation s along every row of u. s is the largest number at which a set of anchors
  has a loss that is higher by no more than a share of it: a search by halves, without a gradient.
- Norms of gradients (Grünefeld et al., arXiv 2603.29466): with weights of covariance one and
  a network that is a line of them, the probability p of the likeliest answer has the variance
  `|dp/dw|^2`, and the answer itself p (1 - p): a pass backward for each answer.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxeff import Gaussian

_LEAST, _MOST, _HALVINGS = 1e-6, 1e2, 20
_DEAD = 1e-6
"""Singular values below this share of the largest move nothing, and have no noise."""


class Sure(NamedTuple):
    """What a method says by itself of every token.

    Attributes:
        logs: Log-probabilities, `[batch, tokens, vocabulary]`.
        total: How unsure it is, `[batch, tokens]`.
        epistemic: What of it is due to the weights.
    """

    logs: Any
    total: Any
    epistemic: Any


def with_noise(adapters: Mapping[str, Mapping[str, Any]], std: Any) -> Any:
    """Makes adapters random, with noise of one deviation in all directions of their updates.

    Args:
        adapters: By parameter the factors `a` `[groups, inputs, rank]` and `b` `[groups, rank,
            outputs]`, as `jaxeff.adapters.init_lora` makes them.
        std: Deviation of the update `a b` along each right singular vector of `b`, at each input.
    """

    def random(a: Any, b: Any) -> Any:
        v, d, u = jnp.linalg.svd(b, full_matrices=False)
        alive = d > _DEAD * d.max(-1, keepdims=True)
        var = jnp.where(alive, (std / jnp.where(alive, d, 1)) ** 2, 0)
        mean = a @ v
        return {"a": Gaussian(mean, jnp.broadcast_to(var[:, None], mean.shape)),
                "b": d[..., None] * u}  # fmt: skip

    return {path: random(**factors) for path, factors in adapters.items()}


def largest_noise(loss: Callable[[Any], Any], tolerance: float) -> float:
    """Finds the largest deviation at which a loss is higher by a share of it at most.

    Args:
        loss: The anchors' loss at a deviation, with the same random numbers each time.
        tolerance: The share.
    """
    bound = float(loss(0.0)) * (1 + tolerance)
    low, high = _LEAST, _MOST
    for _ in range(_HALVINGS):
        # Halves of the logarithm: nothing is known of its size.
        middle = (low * high) ** 0.5
        # A loss that isn't a number is none that is low enough.
        low, high = (middle, high) if float(loss(middle)) <= bound else (low, middle)
    return low


def gradient_norms(f: Callable[..., Any]) -> Callable[[Any, Any], Sure]:
    """Makes a function that says how unsure each token of one sequence is, by gradients' norms."""

    def said(params: Any, x: Any) -> Sure:
        logs = jax.nn.log_softmax(f(params, x))
        likeliest = logs.argmax(-1)
        rows, columns = (i.ravel() for i in jnp.indices(likeliest.shape))

        def norm(place: Any) -> Any:
            def probability(params: Any) -> Any:
                row, column = place
                token = likeliest[row, column]
                return jnp.exp(jax.nn.log_softmax(f(params, x)[row, column])[token])

            slopes = jax.tree.leaves(jax.grad(probability)(params))
            return sum((slope**2).sum() for slope in slopes)

        p = jnp.exp(logs.max(-1))
        # One after another: all of them at once would be as many copies of the weights.
        epistemic = jax.lax.map(norm, (rows, columns)).reshape(p.shape)
        return Sure(logs, p * (1 - p) + epistemic, epistemic)

    return said
