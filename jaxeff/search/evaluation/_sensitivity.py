"""Sensitivity of predictions to the compression of one layer alone, by method and strength.

S(l, q) = mean over inputs of KL(f || f with layer l compressed by q), as Galen feeds it to its
agents (Klein's thesis, eq. (4.6); after ZeroQ, arXiv 2001.00281). All layers, methods and strengths
are policies of one compiled program.

```python
from jaxeff.nn import small_classifier
from jaxeff.search import Actions, SearchSpace, sensitivity

f, params, (x, y) = small_classifier()
space = SearchSpace.read(f, params, x[:1])
found = sensitivity(f, params, x[:64], space, Actions(round_to=4))
found.pruning.shape                                             # [layers, strengths]
```

Sharp edge: at strength 0 of the weights or activations a layer has the most bits of MIX, not float.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.core import input_batch, instance_of, static_integer, validate
from jaxeff.search.space import INT8, MIX, Actions, Policy, SearchSpace
from jaxeff.training import divergences

STRENGTHS = 10
"""Strengths of each method, from 0 to below 1."""


class CompressionSensitivity(NamedTuple):
    """Mean divergences in nats, of predictions from those of the whole model.

    Attributes:
        strengths: Strengths of compression, as in actions.
        pruning: Channels that the layer decides about; 0 where it decides about none.
        weights: Bits of its weights.
        activations: Bits of what it reads.
        eight: Eight bits of both, `[layers]`.
    """

    strengths: Float[np.ndarray, " strengths"]
    pruning: Float[np.ndarray, "layers strengths"]
    weights: Float[np.ndarray, "layers strengths"]
    activations: Float[np.ndarray, "layers strengths"]
    eight: Float[np.ndarray, " layers"]


@validate(
    x=input_batch,
    space=instance_of(SearchSpace),
    actions=instance_of(Actions),
    strengths=static_integer(2),
)
def sensitivity(
    f: Callable[..., Any],
    params: Any,
    x: Any,
    space: SearchSpace,
    actions: Actions = Actions(),  # noqa: B008
    *,
    state: Any = None,
    strengths: int = STRENGTHS,
) -> CompressionSensitivity:
    """Measures every layer by every method.

    Args:
        f: A classifier `f(params, x) -> logits`; with a state `f(params, state, x) -> (logits,
            state)`.
        params: The parameters of `f`.
        x: Inputs, a few hundred without augmentation; they are evaluated at once.
        space: The model's layers.
        actions: Meaning of a strength.
        state: The model's state, which stays as it is.
        strengths: Number of strengths of each method.
    """
    levels = np.linspace(0, 1, strengths, endpoint=False)
    policies = _one_at_a_time(space, actions, levels)
    found = np.asarray(_divergences(f, space, policies, params, state, x), float)
    # Rounding leaves a little less than nothing where nothing changed.
    of_layer = np.maximum(found.mean(-1), 0).reshape(len(space.sites), 3 * strengths + 1)
    # Pruning is a sensitivity of the layer that decides; those that follow have none.
    deciding = np.array([site.group >= 0 for site in space.sites])[:, None]
    pruning, weights, activations = np.split(of_layer[:, :-1], 3, axis=1)
    return CompressionSensitivity(levels, pruning * deciding, weights, activations, of_layer[:, -1])


def _one_at_a_time(space: SearchSpace, actions: Actions, levels: np.ndarray) -> Policy:
    """Compresses every layer in turn: pruned, fewer bits of weights or activations, eight bits."""
    whole = space.whole
    # Strengths within MIX: weaker actions choose a datatype, not a number of bits.
    quantizing = np.asarray(actions.width(actions.eight_below + levels * (1 - actions.eight_below)))
    pruning = actions if actions.prunes else Actions("both", actions.round_to)
    rows: list[Policy] = []
    for i in range(len(space.sites)):
        for level in levels:
            chosen = np.zeros(len(space.sites), np.float32)
            chosen[i] = level
            kept = np.asarray(pruning.kept(space, jnp.asarray(chosen)))
            rows.append(Policy(kept, whole.datatypes, whole.weights, whole.activations))
        for name in ("weights", "activations"):
            rows += [_alone(whole, i, MIX, **{name: bits}) for bits in quantizing]
        rows.append(_alone(whole, i, INT8, weights=8, activations=8))
    return jax.tree.map(lambda *leaves: jnp.stack([*map(jnp.asarray, leaves)]), *rows)


def _alone(whole: Policy, i: int, datatype: int, **bits: int) -> Policy:
    changed = {"datatypes": datatype, **bits}
    values = {name: np.array(value) for name, value in vars(whole).items()}
    for name, value in changed.items():
        values[name][i] = value
    return Policy(**values)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _divergences(
    f: Any, space: SearchSpace, policies: Any, params: Any, state: Any, x: Any
) -> Array:
    changed = functools.partial(space.compressed, f)
    found = divergences(f, changed, policies, params, x, state=state)
    return found.reshape(len(found), -1)


__all__ = ["STRENGTHS", "CompressionSensitivity", "sensitivity"]
