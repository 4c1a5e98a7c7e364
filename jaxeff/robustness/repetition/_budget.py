"""A learned noise budget: noise spread over layers by gradient, in one training run.

```python
import jax
import optax

from jaxeff.nn import small_classifier
from jaxeff.noise import slots
from jaxeff.robustness import learn_budget

f, params, (x, y) = small_classifier()
budget = learn_budget(
    jax.random.key(0), f, params, (x, y), slots(f, params, x), 0.5,
    optimizer=optax.adam(1e-2), epochs=5, batch_size=32,
)
budget.levels                        # by site: sensitive layers get less
```

The noise is reparameterised, so a level has a gradient like any weight. Conserved is the
geometric mean of the levels (the sum of their logarithms): with logits z, layer i of n gets

    sigma_i = level * exp(z_i - mean(z)).

```python
import jax.numpy as jnp

from jaxeff.robustness import spread_levels

levels = spread_levels(0.5, jnp.log(jnp.array([1.0, 2.0, 4.0])))
assert jnp.allclose(levels, jnp.array([0.25, 0.5, 1.0]))
```

Where noise is weak, the loss grows by sum_i c_i sigma_i^2. With the geometric mean fixed, its
minimum is at c_i sigma_i^2 all equal: every layer does the same damage, and sigma_i, being
proportional to 1 / sqrt(c_i), is a measure of robustness. A fixed sum of variances would instead
put all of the noise into the one layer that is least sensitive.

It is one of two cheap replacements of walking noise that Klein's thesis, section 11.3, proposes;
the other is `jaxeff.robustness.kl_sensitivity`.

Sharp edges:
    Levels are compared in the units of each layer's values.
    Trained jointly, weights adapt to the noise while it is spread: what is learned is how the
    network would like to have it, not how fragile the trained network is. Leave `optimizer` out for
    the latter.
    Spread along with the weights, too much noise is no measure of anything: a network that can't
    learn through it leaves it in the first layers, which it gives up, and keeps the last ones
    clean. The loss should stay near that without noise.
    The gradient is noisy: average over enough updates, and compare seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import (
    aligned_arrays,
    check_number,
    function_of_form,
    non_negative,
    optax_optimizer,
    real_array,
    validate,
)
from jaxeff.noise import Additive, Noise, noisy
from jaxeff.training import CheckedLoss, Loss, cross_entropy, fit


class NoiseBudget(NamedTuple):
    """A learned distribution of a fixed amount of noise over layers.

    Attributes:
        levels: Noise level by site.
        params: The model's parameters, trained or as they were.
        state: The model's state, None if it has none.
        history: One record per epoch, as of `jaxeff.training.fit`.
    """

    levels: dict[str, float]
    params: Any
    state: Any
    history: list[dict[str, Any]]


@validate(level=non_negative, logits=real_array(1))
def spread_levels(level: Any, logits: Float[Array, " sites"]) -> Float[Array, " sites"]:
    """Computes levels with the geometric mean `level`, in proportion to `exp(logits)`."""
    # Centred logits: the product of the levels stays level^n whatever the gradient does.
    return level * jnp.exp(logits - logits.mean())


@validate(
    data=aligned_arrays,
    budget_optimizer=optax_optimizer,
    noise=function_of_form("noise(level)"),
    loss=function_of_form("loss(f)"),
)
def learn_budget(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    data: Any,
    sites: Sequence[str],
    level: float,
    *,
    epochs: int,
    batch_size: int,
    optimizer: optax.GradientTransformation | None = None,
    budget_optimizer: optax.GradientTransformation | None = None,
    noise: Callable[[Any], Noise] = Additive,
    state: Any = None,
    loss: Callable[[Callable[..., Any]], Loss] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> NoiseBudget:
    """Learns which layers get how much of a fixed amount of noise.

    Args:
        key: Random key of the mini-batches and the noise.
        f: A classifier `f(params, x) -> logits`; with a state `f(params, state, x) -> (logits, new
            state)`.
        params: The parameters of `f`, to start from.
        data: Inputs and labels.
        sites: Patterns of layers, each with a level of its own; a layer that several match belongs
            to the most specific one.
        level: The geometric mean of the levels, which is conserved.
        epochs: Passes over the data.
        batch_size: Examples per update.
        optimizer: Trains the weights along with the levels; they stay as they are if None.
        budget_optimizer: Trains the levels' logits; Adam with rate 0.02 if None.
        noise: The noise model of a level.
        state: The model's state.
        loss: From the noisy function `g(key, params, ...)` to the loss that is trained, in the form
            of `jaxeff.training.fit`; the softmax cross entropy if None.
        checkpoint: File to keep the run in.
        progress: Whether to show a progress bar; only on a terminal.

    Returns:
        The levels, and the trained model.

    Raises:
        ValueError: Fewer than two sites or one given twice, a level that isn't positive, or a
            pattern that matches or decides no site.
        DivergedError: As of `jaxeff.training.fit`.
    """
    sites = tuple(sites)
    if len(sites) < 2 or len(set(sites)) < len(sites):
        raise ValueError(f"a budget is spread over at least two different sites, got {list(sites)}")
    check_number("level", level, low=float(np.finfo(np.float32).tiny))

    def loss_at(logits: Any, state: Any) -> Loss:
        levels = spread_levels(level, logits)
        g = noisy(f, {site: noise(levels[i]) for i, site in enumerate(sites)})
        return loss(g) if loss else cross_entropy(g, keyed=True, mutable=state is not None)

    def spread(key: Any, trained: Any, state: Any, batch: Any, step: Any) -> Any:
        chosen = loss_at(trained["logits"], state)
        return chosen(key, trained["model"], state, batch, step)

    first = loss_at(jnp.zeros(len(sites)), state)
    if isinstance(first, CheckedLoss):
        first.check(key, params, state, data, batch_size)

    # Two optimizers, for logits are few and of order one: a rate that suits weights hardly moves
    # them.
    transform = optax.partition(
        {"model": optimizer or optax.set_to_zero(), "logits": budget_optimizer or optax.adam(0.02)},
        {"model": "model", "logits": "logits"},
    )
    result = fit(
        key,
        spread,
        {"model": params, "logits": jnp.zeros(len(sites))},
        data,
        optimizer=transform,
        epochs=epochs,
        batch_size=batch_size,
        state=state,
        checkpoint=checkpoint,
        settings={"sites": list(sites), "level": float(level)},
        progress=progress,
    )
    levels = np.asarray(spread_levels(level, result.params["logits"]), float)
    found = dict(zip(sites, levels.tolist(), strict=True))
    return NoiseBudget(found, result.params["model"], result.state, result.history)
