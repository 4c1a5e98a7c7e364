"""How sensitive layers are to noise, measured or learned, and repetition of the sensitive ones.

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
sensitivity = kl_sensitivity(key, f, params, x, slots(f, params, x), jnp.logspace(-2, 2, 17))
tolerated_level(sensitivity)        # per site, lowest for the most sensitive one
```
"""

import functools
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Required, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff import core
from jaxeff.noise import Additive, Noise, noisy
from jaxeff.noise.models import perturb_at
from jaxeff.robustness.curves import Midpoint
from jaxeff.training import CheckedLoss, Loss, cross_entropy, divergences, fit

ONE_BIT = math.log(2)


class NoiseSensitivity(NamedTuple):
    """Divergence of the predictions under noise at each layer.

    `kl_sensitivity` perturbs one layer at a time of a trained network and measures the divergence
    of its predictions from the clean ones, without labels; `learn_budget` spreads a fixed amount of
    noise over layers by gradient, in one training run. They are the two cheap replacements of
    walking noise that Klein's thesis, section 11.3, proposes, the first after the sensitivity
    analysis of Galen. `allocate_repetitions` executes sensitive layers several times.

    Attributes:
        sites: The layers.
        levels: The noise levels, of all layers or of each.
        kl: KL(clean || perturbed) in nats, mean over inputs and draws.
        std_error: Standard error over the draws; NaN for a single one.

    References:
        Borras et al., "Walking Noise", arXiv:2212.10430; Klein's thesis, table 6.1.
    """

    sites: tuple[str, ...]
    levels: Float[np.ndarray, "*sites levels"]
    kl: Float[np.ndarray, "sites levels"]
    std_error: Float[np.ndarray, "sites levels"]


# 9 parameters: a model and its inputs, where and by what it is perturbed, and how often.
@core.validate(
    x=core.input_batch,
    levels=core.real_array(),
    noise=core.function_of_form("noise(level)"),
    draws=core.static_integer(),
)
def kl_sensitivity(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    x: Any,
    sites: Sequence[str],
    levels: Float[Array, "*sites levels"],
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
        levels: Noise levels `[levels]`, or each layer's own, `[sites, levels]`.
        noise: The noise model of a level.
        draws: Draws of the noise per layer and level.
        state: The model's state, which stays as it is.

    Raises:
        ValueError: No sites or one given twice, levels that aren't a row of numbers, for all or
            for each, or a pattern that matches or decides no site.
    """
    sites = tuple(sites)
    if not sites or len(set(sites)) < len(sites):
        raise ValueError(f"sites must be patterns that differ, got {list(sites)}.")
    grid = jnp.asarray(levels, float)
    if not grid.size or (grid.ndim != 1 and grid.shape[:-1] != (len(sites),)):
        raise ValueError(
            "the levels must be one row of numbers, or a row for each site, not of shape "
            f"{grid.shape}."
        )
    for level in np.unique(grid):
        noise(level)  # a bad level is named here, while it is a number
    keys = jax.random.split(key, draws)
    each = jnp.broadcast_to(grid, (len(sites), grid.shape[-1]))
    model = _NoisySites(f, noise, sites)
    kl = np.asarray(_divergences(model, params, state, x, each, keys), float)
    scatter = np.std(kl, axis=-1, ddof=1) if draws > 1 else np.full(kl.shape[:-1], np.nan)
    return NoiseSensitivity(sites, np.asarray(grid), kl.mean(-1), scatter / math.sqrt(draws))


@core.validate(sensitivity=core.instance_of(NoiseSensitivity), threshold=core.positive)
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
    tolerated = np.zeros(len(sensitivity.sites))
    each = np.broadcast_to(np.log(sensitivity.levels), sensitivity.kl.shape)
    # A divergence of exactly zero (noise that changes nothing) has no logarithm.
    rows = np.log(np.maximum(sensitivity.kl, 1e-30))
    for i, (levels, row) in enumerate(zip(each, rows, strict=True)):
        beyond = np.flatnonzero(row >= math.log(threshold))
        if not beyond.size:
            tolerated[i] = math.inf
        elif j := int(beyond[0]):
            # On logarithmic axes a divergence that grows as a power of the level is a
            # straight line.
            share = (math.log(threshold) - row[j - 1]) / (row[j] - row[j - 1])
            tolerated[i] = math.exp(levels[j - 1] + share * (levels[j] - levels[j - 1]))
    return tolerated


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
        return jax.lax.cond(self.active, lambda: perturb_at(key, self.model, x, site), lambda: x)


class _NoisySites(NamedTuple):
    """A model with noise at one of some sites; static to `jit`.

    Attributes:
        f: The model.
        noise: The noise model of a level.
        sites: Patterns of layers.
    """

    f: Callable[..., Any]
    noise: Callable[[Any], Noise]
    sites: tuple[str, ...]


@functools.partial(jax.jit, static_argnums=0)
def _divergences(
    model: _NoisySites, params: Any, state: Any, x: Any, levels: Any, keys: Any
) -> Float[Array, "sites levels draws"]:
    f, noise, sites = model

    def changed(change: Any) -> Any:
        index, level, key = change
        spec = {s: _Switched(noise(level), index == i) for i, s in enumerate(sites)}
        return functools.partial(noisy(f, spec), key)

    # One flat list of site, level and draw: the loop over it is compiled once for all of them.
    shape = (*levels.shape, len(keys))
    site, column, draw = (index.ravel() for index in jnp.indices(shape))
    changes = (site, levels[site, column], keys[draw])
    kl = divergences(f, changed, params, x, changes, state=state)
    return kl.mean(range(1, kl.ndim)).reshape(shape)


class NoiseBudget(NamedTuple):
    """A learned distribution of a fixed amount of noise over layers.

    Sharp edges:
        `kl_sensitivity` sees the network as it is. Walking noise trains with the noise, and a layer
        that learns to live with it may rank otherwise. Its divergence has no upper bound: a network
        that is sure of the wrong class exceeds that of guessing.
        Levels of a budget are compared in the units of each layer's values.
        Trained jointly, weights adapt to the noise while it is spread: what is learned is how the
        network would like to have it, not how fragile the trained network is. Leave `optimizer` out
        for the latter.
        Spread along with the weights, too much noise is no measure of anything: a network that
        can't learn through it leaves it in the first layers, which it gives up, and keeps the last
        ones clean. The loss should stay near that without noise.
        The gradient is noisy: average over enough updates, and compare seeds.

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


@core.validate(level=core.non_negative, logits=core.real_array(1))
def spread_levels(level: Any, logits: Float[Array, " sites"]) -> Float[Array, " sites"]:
    """Computes levels with the geometric mean `level`, in proportion to `exp(logits)`.

    The noise of a budget is reparameterised, so a level has a gradient like any weight. Conserved
    is the geometric mean of the levels (the sum of their logarithms): with logits z, layer i of n
    gets

        sigma_i = level * exp(z_i - mean(z)).

    ```python
    import jax.numpy as jnp

    from jaxeff.robustness import spread_levels

    levels = spread_levels(0.5, jnp.log(jnp.array([1.0, 2.0, 4.0])))
    assert jnp.allclose(levels, jnp.array([0.25, 0.5, 1.0]))
    ```

    Where noise is weak, the loss grows by sum_i c_i sigma_i^2. With the geometric mean fixed, its
    minimum is at c_i sigma_i^2 all equal: every layer does the same damage, and sigma_i, being
    proportional to 1 / sqrt(c_i), is a measure of robustness. A fixed sum of variances would
    instead put all of the noise into the one layer that is least sensitive.
    """
    # Centred logits: the product of the levels stays level^n whatever the gradient does.
    return level * jnp.exp(logits - logits.mean())


class BudgetOptions(TypedDict, total=False):
    """How a budget is learnt; `BudgetSettings` has their meaning and defaults."""

    epochs: Required[int]
    batch_size: Required[int]
    optimizer: optax.GradientTransformation | None
    budget_optimizer: optax.GradientTransformation | None
    noise: Callable[[Any], Noise]
    state: Any
    loss: Callable[[Callable[..., Any]], Loss] | None
    checkpoint: str | os.PathLike[str] | None
    progress: bool


@dataclass(frozen=True, kw_only=True)
class BudgetSettings:
    """How a budget of noise is learnt.

    Attributes:
        epochs: Passes over the data.
        batch_size: Examples per update.
        optimizer: Trains the weights along with the levels; they stay as they are if None.
        budget_optimizer: Trains the levels' logits; Adam with rate 0.02 if None.
        noise: The noise model of a level.
        state: The model's state.
        loss: From the noisy function to the loss that is trained; cross entropy if None.
        checkpoint: File to keep the run in.
        progress: Whether to show a progress bar; only on a terminal.
    """

    epochs: int
    batch_size: int
    optimizer: optax.GradientTransformation | None = None
    budget_optimizer: optax.GradientTransformation | None = None
    noise: Callable[[Any], Noise] = Additive
    state: Any = None
    loss: Callable[[Callable[..., Any]], Loss] | None = None
    checkpoint: str | os.PathLike[str] | None = None
    progress: bool = True

    def loss_at(
        self, f: Callable[..., Any], sites: tuple[str, ...], levels: Any, state: Any
    ) -> Loss:
        """Makes the loss of a model whose sites have some levels of noise."""
        g = noisy(f, {site: self.noise(levels[i]) for i, site in enumerate(sites)})
        if self.loss is not None:
            return self.loss(g)
        return cross_entropy(g, keyed=True, mutable=state is not None)

    def transform(self) -> optax.GradientTransformation:
        """Makes the optimizer of weights and logits.

        They are two, for logits are few and of order one: a rate that suits weights hardly moves
        them.
        """
        of_model = self.optimizer or optax.set_to_zero()
        of_logits = self.budget_optimizer or optax.adam(0.02)
        return optax.partition(
            {"model": of_model, "logits": of_logits}, {"model": "model", "logits": "logits"}
        )


@core.validate(
    data=core.aligned_arrays,
    budget_optimizer=core.optax_optimizer,
    noise=core.function_of_form("noise(level)"),
    loss=core.function_of_form("loss(f)"),
)
@core.forwards(BudgetSettings, BudgetOptions)
def learn_budget(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    data: Any,
    sites: Sequence[str],
    level: float,
    **options: Unpack[BudgetOptions],
) -> NoiseBudget:
    """Learns which layers get how much of a fixed amount of noise.

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

    Args:
        key: Random key of the mini-batches and the noise.
        f: A classifier `f(params, x) -> logits`; with a state `f(params, state, x) -> (logits, new
            state)`.
        params: The parameters of `f`, to start from.
        data: Inputs and labels.
        sites: Patterns of layers, each with a level of its own; a layer that several match belongs
            to the most specific one.
        level: The geometric mean of the levels, which is conserved.
        **options: `epochs`, the passes over the data, and `batch_size`, the examples per update;
            `optimizer`, which trains the weights along with the levels: they stay as they are if
            None; `budget_optimizer`, which trains the levels' logits: Adam with rate 0.02 if None;
            `noise`, the noise model of a level, `Additive`; `state`, the model's; `loss`, from the
            noisy function `g(key, params, ...)` to the loss that is trained, in the form of
            `jaxeff.training.fit`: the softmax cross entropy if None; `checkpoint`, a file to keep
            the run in; `progress`, whether to show a progress bar, only on a terminal.

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
    core.check_number("level", level, low=float(np.finfo(np.float32).tiny))

    asked = BudgetSettings(**options)

    def loss_at(logits: Any, state: Any) -> Loss:
        return asked.loss_at(f, sites, spread_levels(level, logits), state)

    def spread(key: Any, trained: Any, state: Any, batch: Any, step: Any) -> Any:
        chosen = loss_at(trained["logits"], state)
        return chosen(key, trained["model"], state, batch, step)

    first = loss_at(jnp.zeros(len(sites)), asked.state)
    if isinstance(first, CheckedLoss):
        first.check(key, params, asked.state, data, asked.batch_size)
    result = fit(
        key,
        spread,
        {"model": params, "logits": jnp.zeros(len(sites))},
        data,
        optimizer=asked.transform(),
        epochs=asked.epochs,
        batch_size=asked.batch_size,
        state=asked.state,
        checkpoint=asked.checkpoint,
        settings={"sites": list(sites), "level": float(level)},
        progress=asked.progress,
    )
    levels = np.asarray(spread_levels(level, result.params["logits"]), float)
    by_site = dict(zip(sites, levels.tolist(), strict=True))
    return NoiseBudget(by_site, result.params["model"], result.state, result.history)


@core.validate(midpoints=core.string_mapping, budget=core.static_integer())
def allocate_repetitions(
    midpoints: Mapping[str, float | Midpoint | None], budget: int
) -> dict[str, int]:
    """Shares executions out among layers, in proportion to 1 / midpoint.

    A layer whose midpoint wasn't found gets its share all the same: by the highest level that was
    measured where the accuracy is still above its middle there (that much it tolerates), by the
    lowest where it is already below, and as the median of the other layers where nothing is known.

    Repetition averages n executions of a layer, which divides its noise variance by n. Of a budget
    of executions for the whole network, a layer gets its share in proportion to its sensitivity
    1/midpoint.

    ```python
    >>> from jaxeff.nn import small_classifier
    >>> from jaxeff.noise import Additive, Repeated, noisy
    >>> from jaxeff.robustness import allocate_repetitions
    >>> midpoints = {"conv1": 0.4, "relu": 2.1, "fc1": 1.0}  # noise each layer tolerates alone
    >>> times = allocate_repetitions(midpoints, budget=2 * len(midpoints))
    >>> times
    {'conv1': 4, 'relu': 1, 'fc1': 1}
    >>> f, params, (x, y) = small_classifier()
    >>> g = noisy(f, {site: Repeated(Additive(0.2), n) for site, n in times.items()})

    ```

    Args:
        midpoints: The noise level at which each layer alone brings the accuracy halfway to
            chance, as a number or as `fit_midpoint` gives it; infinite for a layer that never
            does, NaN or None where nothing is known.
        budget: Executions of all layers together.

    Returns:
        Executions per layer, each at least one, that sum to the budget. What proportionality
        leaves over goes to the largest remainders.

    Raises:
        ValueError: The budget is below one execution per layer, or a midpoint isn't positive.

    Warns:
        UserWarning: Midpoints were not found; it says by which levels these layers got a share.
    """
    if budget < len(midpoints):
        raise ValueError(
            f"A budget of {budget} executions is less than one for each of {len(midpoints)} layers."
        )
    sensitivity = 1 / np.array(list(_tolerated(midpoints).values()), float)
    # All midpoints infinite: no layer needs more than any other.
    if not sensitivity.any():
        sensitivity += 1
    exact = _proportional(sensitivity, budget)
    times = np.floor(exact).astype(int)
    left = budget - times.sum()
    # Largest remainders: rounding down leaves fewer executions than layers, which go to
    # those that lost most.
    times[np.argsort(times - exact, kind="stable")[:left]] += 1
    return dict(zip(midpoints, times.tolist(), strict=True))


def _tolerated(midpoints: Mapping[str, float | Midpoint | None]) -> dict[str, float]:
    """Returns a level for every layer, with a warning about those that were not found."""
    levels, notes = {}, []
    for site, midpoint in midpoints.items():
        level, note = _level(midpoint)
        if level <= 0:
            raise ValueError(f"The midpoint of {site!r} must be positive, but is {level}.")
        levels[site] = level
        if note:
            notes.append(f"{site!r} counts as {level:.4g}, {note}")
    unknown = [site for site, level in levels.items() if math.isnan(level)]
    if unknown:
        known = [level for level in levels.values() if not math.isnan(level)]
        # The median neither favours nor penalizes the layers that nothing is known of.
        middle = float(np.median(known)) if known else 1.0
        what = f"as {middle:.4g}, the median of the others" if known else "alike"
        notes.append(f"nothing is known of {', '.join(map(repr, unknown))}, counted {what}")
        levels |= dict.fromkeys(unknown, middle)
    if notes:
        warnings.warn(
            f"Midpoints that were not found: {'; '.join(notes)}.", UserWarning, stacklevel=3
        )
    return levels


def _level(midpoint: float | Midpoint | None) -> tuple[float, str]:
    """Returns a layer's midpoint or what stands for it, and why; NaN where nothing is known."""
    if midpoint is None:
        return math.nan, ""
    if not isinstance(midpoint, Midpoint):
        return float(midpoint), ""
    low, high = midpoint.bracket
    if midpoint.exists:
        return midpoint.mu, ""
    if low > 0 and math.isinf(high):
        return low, "the highest level measured"
    if low == 0 and math.isfinite(high):
        return high, "the lowest level measured"
    if math.isfinite(low) and math.isfinite(high):
        # The geometric middle: levels are usually spaced by ratios.
        return math.sqrt(low * high), "between the levels where its accuracy crosses the middle"
    return math.nan, ""


def _proportional(weights: np.ndarray, budget: int) -> np.ndarray:
    """Computes proportional shares; layers that would get less than one get one."""
    free = np.ones(len(weights), bool)
    while True:
        rest = budget - np.count_nonzero(~free)
        shares = np.where(free, rest * weights / max(weights[free].sum(), 1e-300), 1.0)
        # Who is set to one leaves less for the others, of whom more may fall below: until
        # none does.
        low = free & (shares < 1)
        if not low.any():
            return shares
        free &= ~low
