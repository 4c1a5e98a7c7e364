"""`swag`: a Gaussian around the way of an optimizer, as a wrapper of any optax optimizer.

```python
import jax
import optax

from jaxeff.bayes import predict, swag, swag_posterior
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit

key = jax.random.key(0)
f, params, (x, y) = small_classifier()
optimizer = swag(optax.sgd(0.05, momentum=0.9), start=40, every=8)
result = fit(key, cross_entropy(f), params, (x, y), optimizer=optimizer, epochs=10, batch_size=32)
posterior = swag_posterior(result.params, result.opt_state)
logits = predict(key, f, posterior, x, samples=10)
```

Parameters are looked at every so many updates after the start: their mean, their variances, and how
the last ones deviated from the mean so far. Half of the covariance is diagonal, half of the rank of
those deviations (Maddox et al. 2019, arXiv:1902.02476, algorithm 1). The mean alone is stochastic
weight averaging.

Sharp edges:
    The spread is that of the optimizer: a constant learning rate that is large enough to move about
    an optimum makes it, a decayed one makes none.
    Batch statistics belong to one set of parameters: `jaxeff.training.converge_batch_stats` of the
    mean, or a function without.
    Memory is that of `rank + 2` networks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from jaxeff.bayes.optimizers._ivon import state_of
from jaxeff.bayes.posteriors import named_leaves, with_random
from jaxeff.bayes.variational import CorrelatedPosterior, low_rank_posterior
from jaxeff.core import is_concrete, static_integer, validate


class SWAGState(NamedTuple):
    """State of `swag`.

    Attributes:
        inner: The wrapped optimizer's.
        step: Updates made so far.
        seen: How often parameters have been looked at.
        mean: Their mean, as one vector.
        square: The mean of their squares.
        deviations: The last deviations from the mean so far, a ring.
    """

    inner: Any
    step: Int[Array, ""]
    seen: Int[Array, ""]
    mean: Float[Array, " size"]
    square: Float[Array, " size"]
    deviations: Float[Array, "rank size"]


@validate(start=static_integer(0), every=static_integer(), rank=static_integer(2))
def swag(
    optimizer: optax.GradientTransformation, *, start: int, every: int, rank: int = 20
) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimizer so that it remembers where it has been.

    Args:
        optimizer: Any optax optimizer; what it does stays the same.
        start: Updates before parameters are looked at.
        every: Updates from one look to the next, as those of an epoch.
        rank: Deviations that are kept, at least 2.

    Returns:
        The optimizer; `swag_posterior` reads the posterior from its state.
    """
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> SWAGState:
        size = _vector(params)
        zero = jnp.zeros((), jnp.int32)
        return SWAGState(
            inner.init(params), zero, zero, jnp.zeros_like(size), jnp.zeros_like(size),
            jnp.zeros((rank, *size.shape), size.dtype),
        )  # fmt: skip

    def update(
        updates: Any, state: SWAGState, params: Any = None, **extra: Any
    ) -> tuple[Any, SWAGState]:
        if params is None:
            raise ValueError("swag looks at the parameters: pass them to update")
        moved, after = inner.update(updates, state.inner, params, **extra)
        step = state.step + 1
        looks = (step > start) & ((step - start) % every == 0)
        vector = _vector(optax.apply_updates(params, moved))
        seen = state.seen + 1
        share = (1 / seen).astype(vector.dtype)
        mean = state.mean + share * (vector - state.mean)
        square = state.square + share * (vector**2 - state.square)
        # Of the mean so far, as in the source: nothing is kept that a later mean could correct.
        deviations = state.deviations.at[state.seen % rank].set(vector - mean)
        found = (seen, mean, square, deviations)
        kept = jax.tree.map(lambda new, old: jnp.where(looks, new, old), found, state[2:])
        return moved, SWAGState(after, step, *kept)

    return optax.GradientTransformationExtraArgs(init, update)


@validate()
def swag_posterior(params: Any, opt_state: Any) -> CorrelatedPosterior:
    """Reads the posterior from the state of `swag`.

    Args:
        params: The trained parameters: structure, shapes and dtypes.
        opt_state: The state of the optimizer, also of a chain that holds `swag`.

    Returns:
        A Gaussian of low rank and diagonal.

    Raises:
        ValueError: There is no `swag` in it, or it has looked at parameters fewer than twice.
    """
    state = state_of(SWAGState, "swag", opt_state)
    rank = len(state.deviations)
    if is_concrete(state.seen) and int(state.seen) < 2:
        raise ValueError(
            f"swag_posterior: parameters were looked at {int(state.seen)} times: train longer, "
            "start earlier or look more often"
        )
    kept = jnp.minimum(state.seen, rank).astype(state.mean.dtype)
    # Not below a millionth of the mean square: rounding would leave zero, or less.
    variance = jnp.maximum(state.square - state.mean**2, 1e-12 + 1e-6 * state.square)
    factor = state.deviations.T / jnp.sqrt(2 * (kept - 1))
    mean = with_random(params, ravel_pytree(named_leaves(params))[1](state.mean))
    return low_rank_posterior(mean, jnp.sqrt(variance / 2), factor)


def _vector(params: Any) -> Array:
    # By path, as guides over a vector order theirs.
    vector: Array = ravel_pytree(named_leaves(params))[0]
    return vector
