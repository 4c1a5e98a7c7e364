"""`converge_batch_stats`: running statistics at their limit, without the steps that lead there.

A network that was changed, by pruning or by bits, has running statistics of another one. Training
on moves them a little with every step; a few steps leave them behind, and its accuracy is that of
wrong statistics. Estimating them anew is what tells candidates apart (Li et al., EagleEye, arXiv
2007.02491).

A running mean moves as s' = m s + (1 - m) b for the batch's statistic b. Its fixed point is b,
which two evaluations tell: of zeros, (1 - m) b, and of ones, m + (1 - m) b.

```python
import jax.numpy as jnp

from jaxeff.training import converge_batch_stats


def train(params, state, x):                             # a batch norm's mean, with momentum
    mean = 0.9 * state["mean"] + 0.1 * x.mean(0)
    return x - x.mean(0), {"mean": mean, "steps": state["steps"] + 1}


x = jnp.array([[1.0, 4.0], [3.0, 6.0]])
state = {"mean": jnp.zeros(2), "steps": jnp.array(7)}
found = converge_batch_stats(train, {}, state, x)        # instead of hundreds of steps
assert jnp.allclose(found["mean"], x.mean(0)) and found["steps"] == 7
```
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array


def converge_batch_stats(train: Callable[..., Any], params: Any, state: Any, x: Any) -> Any:
    """Computes the limit of the state under training on one batch with fixed parameters.

    Args:
        train: The network in training form, `train(params, state, x) -> (logits, state)`; its
            result for `x` may not depend on the state.
        params: The parameters.
        state: State of the model; a running mean in it is replaced: elementwise s' = m s + (1 - m)
            b with m below 1. Anything else, such as a counter, stays as it is.
        x: A batch.
    """

    def after(value: float) -> Any:
        given = jax.tree.map(lambda leaf: jnp.full_like(leaf, value), state)
        return train(params, given, x)[1]

    def fixed(leaf: Array, zero: Array, one: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        # s' = m s + (1 - m) b is affine in s: two values give m, and its fixed point is b.
        stays = one - zero  # m
        # With m = 1 nothing moves: it is no running mean, and stays as it is.
        moves = stays < 1 - 1e-4
        return jnp.where(moves, zero / jnp.where(moves, 1 - stays, 1), leaf)

    return jax.tree.map(fixed, state, after(0), after(1))
