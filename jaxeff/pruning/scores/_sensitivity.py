"""Scores by what a loss loses: first-order Taylor, and optimal brain damage.

Removing weights w changes a loss by about -g.w + w.H.w / 2. The first term, squared and summed over
a channel, is Molchanov et al.'s (arXiv:1906.10771, eq. 8, of the whole group); with the diagonal of
the Hessian alone at a minimum, h w^2 / 2 is LeCun et al.'s (Optimal Brain Damage, 1990, eq. 5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxeff.pruning.dependencies import Channels
from jaxeff.pruning.scores._summing import Score, summed

Loss = Callable[[Any, Any], Any]


def taylor(loss: Loss, batches: Iterable[Any]) -> Score:
    """Scores by first order: the squared change of each batch's loss, a mean over batches.

    Args:
        loss: `loss(params, batch)`, a scalar.
        batches: Batches of one shape.
    """
    given = list(batches)
    _check(given)

    def score(params: Any, channels: Channels) -> dict[str, np.ndarray]:
        gradient = jax.jit(jax.grad(loss))
        total: dict[str, np.ndarray] = {}
        for batch in given:
            # Summed over a channel before it is squared: the change of the loss if all of it goes,
            # to first order.
            products = jax.tree.map(lambda w, g: w * g, params, gradient(params, batch))
            for name, change in summed(products, channels).items():
                total[name] = total.get(name, 0) + change**2 / len(given)
        return total

    return score


def optimal_brain_damage(
    key: PRNGKeyArray, loss: Loss, batches: Iterable[Any], probes: int = 8
) -> Score:
    """Scores by second order, with the Hessian's diagonal by Hutchinson's probes.

    Args:
        key: Random key of the probes.
        loss: `loss(params, batch)`, a scalar.
        batches: Batches of one shape.
        probes: Random signs per batch; the estimate is unbiased, its error falls as 1/sqrt(probes).
    """
    given = list(batches)
    _check(given)

    def score(params: Any, channels: Channels) -> dict[str, np.ndarray]:
        def probed(key: PRNGKeyArray, batch: Any) -> Any:
            leaves, structure = jax.tree.flatten(params)
            keys = jax.random.split(key, len(leaves))
            signs = [
                jax.random.rademacher(k, w.shape, w.dtype)
                for k, w in zip(keys, leaves, strict=True)
            ]
            v = jax.tree.unflatten(structure, signs)
            # Hutchinson: E[v * (H v)] is the diagonal for random signs v. Forward over reverse, a
            # Hessian product costs a few gradients.
            _, product = jax.jvp(jax.grad(lambda p: loss(p, batch)), (params,), (v,))
            return jax.tree.map(jnp.multiply, v, product)

        @jax.jit
        def diagonal(key: PRNGKeyArray, batch: Any) -> Any:
            found = jax.vmap(probed, (0, None))(jax.random.split(key, probes), batch)
            return jax.tree.map(lambda h: h.mean(0), found)

        keys = jax.random.split(key, len(given))
        curvature = [diagonal(k, batch) for k, batch in zip(keys, given, strict=True)]
        mean = jax.tree.map(lambda *h: sum(h) / len(h), *curvature)
        # At a minimum no curvature is negative: such values come from the estimate, or from
        # training that stopped early.
        lost = jax.tree.map(lambda w, h: 0.5 * jnp.maximum(h, 0) * w * w, params, mean)
        return summed(lost, channels)

    return score


def _check(batches: list[Any]) -> None:
    if not batches:
        raise ValueError("a score by sensitivity needs at least one batch, but there is none")
