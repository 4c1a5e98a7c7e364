"""Sensitivity of layers to noise, without training: KL of the perturbed against the clean output.

```python
import jax
import jax.numpy as jnp
import optax

from jaxeff.nn import small_classifier
from jaxeff.noise import slots
from jaxeff.robustness import kl_sensitivity, tolerated_level
from jaxeff.training import cross_entropy, fit

key = jax.random.key(0)
f, params, (x, y) = small_classifier()
params = fit(
    key, cross_entropy(f), params, (x, y), optimizer=optax.adam(1e-2), epochs=15, batch_size=32
).params
found = kl_sensitivity(key, f, params, x, slots(f, params, x), jnp.logspace(-2, 2, 17))
tolerated_level(found)              # per site, lowest for the most sensitive one
```

One layer at a time is perturbed, in a network trained without noise, and the divergence of its
predictions from the clean ones is measured; no labels are needed. It is one of two cheap
replacements of walking noise that Klein's thesis, section 11.3, proposes, after the sensitivity
analysis of Galen; `jaxeff.robustness.learn_budget` is the other.

Sharp edges:
    It sees the network as it is. Walking noise trains with the noise, and a layer that learns to
    live with it may rank otherwise.
    The divergence has no upper bound: a network that is sure of the wrong class exceeds that of
    guessing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import (
    function_of_form,
    input_batch,
    instance_of,
    positive,
    real_array,
    static_integer,
    validate,
)
from jaxeff.noise import Additive, Noise, noisy
from jaxeff.noise.models import perturb_at
from jaxeff.training import divergences

ONE_BIT = math.log(2)


class NoiseSensitivity(NamedTuple):
    """Divergence of the predictions under noise at each layer.

    Attributes:
        sites: The layers.
        levels: The noise levels.
        kl: KL(clean || perturbed) in nats, mean over inputs and draws.
        std_error: Standard error over the draws; NaN for a single one.
    """

    sites: tuple[str, ...]
    levels: Float[np.ndarray, " levels"]
    kl: Float[np.ndarray, "sites levels"]
    std_error: Float[np.ndarray, "sites levels"]


@validate(
    x=input_batch,
    levels=real_array(),
    noise=function_of_form("noise(level)"),
    draws=static_integer(),
)
def kl_sensitivity(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    x: Any,
    sites: Sequence[str],
    levels: Float[Array, " levels"],
    *,
    noise: Callable[[Any], Noise] = Additive,
    draws: int = 4,
    state: Any = None,
) -> NoiseSensitivity:
    """Measures every layer at every level, as one compiled program.

    Args:
        key: Random key of the noise, the same for all layers and levels.
        f: A classifier `f(params, x) -> logits`; with a state `f(params, state, x) -> (logits, new
            state)`.
        params: The parameters of `f`.
        x: Inputs, a few hundred of them; they are evaluated at once.
        sites: Patterns of layers, each perturbed as a whole and on its own; a layer that several
            match belongs to the most specific one.
        levels: Noise levels.
        noise: The noise model of a level.
        draws: Draws of the noise per layer and level.
        state: The model's state, which stays as it is.

    Raises:
        ValueError: No sites or one given twice, levels that aren't one row of numbers, or a
            pattern that matches or decides no site.
    """
    sites = tuple(sites)
    if not sites or len(set(sites)) < len(sites):
        raise ValueError(f"sites must be patterns that differ, got {list(sites)}.")
    grid = jnp.asarray(levels, float)
    if grid.ndim != 1 or not len(grid):
        raise ValueError(f"the levels must be one row of numbers, not of shape {grid.shape}.")
    for level in grid:
        noise(level)  # a bad level is named here, while it is a number
    keys = jax.random.split(key, draws)
    kl = np.asarray(_divergences(f, noise, sites, keys, params, state, x, grid), float)
    scatter = np.std(kl, axis=-1, ddof=1) if draws > 1 else np.full(kl.shape[:-1], np.nan)
    return NoiseSensitivity(sites, np.asarray(grid), kl.mean(-1), scatter / math.sqrt(draws))


@validate(sensitivity=instance_of(NoiseSensitivity), threshold=positive)
def tolerated_level(
    sensitivity: NoiseSensitivity, threshold: float = ONE_BIT
) -> Float[np.ndarray, " sites"]:
    """Returns the noise level at which a layer's divergence reaches a threshold.

    Args:
        sensitivity: From `kl_sensitivity`, its levels positive and rising.
        threshold: In nats; at one bit the clean prediction has lost half of its probability on
            (geometric) average.

    Returns:
        Interpolated between levels on logarithmic axes; 0 where the lowest level exceeds the
        threshold already, infinity where the highest doesn't reach it.
    """
    levels, found = np.log(sensitivity.levels), np.zeros(len(sensitivity.sites))
    # A divergence of exactly zero (noise that changes nothing) has no logarithm.
    for i, row in enumerate(np.log(np.maximum(sensitivity.kl, 1e-30))):
        beyond = np.flatnonzero(row >= math.log(threshold))
        if not beyond.size:
            found[i] = math.inf
        elif j := int(beyond[0]):
            # On logarithmic axes a divergence that grows as a power of the level is a
            # straight line.
            share = (math.log(threshold) - row[j - 1]) / (row[j] - row[j - 1])
            found[i] = math.exp(levels[j - 1] + share * (levels[j] - levels[j - 1]))
    return found


class _Switched:
    """A noise model with a switch; switched off, it draws nothing either."""

    def __init__(self, model: Noise, active: Array) -> None:
        self.model = model
        self.active = active
        self.at = getattr(model, "at", "output")

    def perturb(self, key: PRNGKeyArray, x: Any) -> Any:
        return self.perturb_site(key, 0, x)

    def perturb_site(self, key: PRNGKeyArray, site: int, x: Any) -> Any:
        # One program for all layers: which of them is perturbed is a traced number.
        return jax.lax.cond(self.active, lambda: perturb_at(self.model, key, site, x), lambda: x)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _divergences(
    f: Any,
    noise: Any,
    sites: tuple[str, ...],
    keys: Any,
    params: Any,
    state: Any,
    x: Any,
    grid: Any,
) -> Float[Array, "sites levels draws"]:
    def changed(change: Any) -> Any:
        index, level, key = change
        spec = {s: _Switched(noise(level), index == i) for i, s in enumerate(sites)}
        return functools.partial(noisy(f, spec), key)

    # One flat list of site, level and draw: the loop over it is compiled once for all of them.
    every = jnp.meshgrid(jnp.arange(len(sites)), grid, jnp.arange(len(keys)), indexing="ij")
    changes = (every[0].ravel(), every[1].ravel(), keys[every[2].ravel()])
    found = divergences(f, changed, changes, params, x, state=state)
    return found.mean(range(1, found.ndim)).reshape(every[0].shape)
