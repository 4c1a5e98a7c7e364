"""The part that variational methods share: an objective over a guide's numbers, and training.

The objective per example is a loss of the outputs under drawn parameters plus a weighted
Kullback-Leibler divergence from the prior; training is `jaxeff.training`'s, each epoch one compiled
scan, with checkpoints.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.bayes.posteriors import (
    Likelihood,
    Prior,
    Random,
    Scales,
    is_posterior,
    likelihood_name,
    named_leaves,
    parameter_table,
    prior_scales,
    random_part,
    to_gaussians,
)
from jaxeff.bayes.variational._correlated import CorrelatedPosterior
from jaxeff.bayes.variational._guide import Guide
from jaxeff.core import Table, check_count, check_number, check_params, shown_as_table
from jaxeff.moment_propagation import is_gaussian
from jaxeff.store import run_identity
from jaxeff.training import RunOptions, TrainState, describe_training, init, make_epoch, run_epochs

Loss = Callable[[Any, Any], Float[Array, ""]]
"""From outputs with a leading axis of draws and targets to a loss per example, in nats."""

START = 2**32 - 1
"""Folded into a run's key to start the guide; the epochs have the numbers below."""


@shown_as_table
class SVIResult(NamedTuple):
    """A trained posterior.

    Attributes:
        posterior: A posterior (see `jaxeff.bayes.posteriors`): of the mean-field guide a pytree of
            `jaxeff.Gaussian` with the structure of the parameters, else a `CorrelatedPosterior`.
        history: Per epoch one record: ``epoch``, ``loss`` (the objective per example), ``nll`` (its
            first term), ``kl`` (whole network, unweighted) and ``kl_weight``, all means over the
            epoch and in nats, and what ``eval_fn`` returned.
        likelihood: Meaning of the outputs of the function.
    """

    posterior: Any
    history: list[dict[str, Any]]
    likelihood: Likelihood | None = None

    @property
    def losses(self) -> np.ndarray:
        """The objective per example of each epoch, in nats, ``[epochs]``."""
        return np.array([record["loss"] for record in self.history])

    def _table(self) -> Table:
        gaussians = named_leaves(to_gaussians(self.posterior), is_gaussian)
        random = {path: leaf.shape for path, leaf in gaussians.items() if is_gaussian(leaf)}
        epochs = f"{len(self.history)} epochs"
        if self.history:
            first, last = self.history[0], self.history[-1]
            epochs += "".join(
                f", {name} {first[name]:.4g} to {last[name]:.4g}"
                for name in ("nll", "kl")  # the loss grows with the weight of the KL
                if name in last
            )
        fixed = {path: leaf for path, leaf in gaussians.items() if path not in random}
        return parameter_table(f"SVI: {epochs}", {**fixed, **dict.fromkeys(random, 0)}, random)


def start_from(
    params: Any,
    prior: Prior,
    init_scale: float,
    f: Callable[..., Any] | None = None,
    inputs: tuple[Any, ...] = (),
) -> tuple[Any, dict[str, float | None], Random]:
    """Starts a guide at parameters, or at the moments of another posterior.

    Args:
        params: Pytree of parameters, or any posterior.
        prior: See `jaxeff.bayes.posteriors`.
        init_scale: Standard deviation to start with; of a posterior, the least one.
        f: ``f(params, *inputs) -> outputs``, which tells fan-ins.
        inputs: The inputs; only their shapes play a part.

    Returns:
        The means, the prior's standard deviations and those to start with, by path.

    Raises:
        ValueError: The scale isn't positive, or the prior doesn't fit the parameters.
    """
    check_number("init_scale", init_scale, above=0)
    given = to_gaussians(params) if is_posterior(params) else params
    check_params("params", given)
    means = jax.tree.map(
        lambda leaf: leaf.mean if is_gaussian(leaf) else leaf, given, is_leaf=is_gaussian
    )
    scales = prior_scales(prior, means, f if inputs else None, *inputs)
    leaves = named_leaves(given, is_leaf=is_gaussian)
    stds = {
        # At least `init_scale`: draws that agree in a number leave it no spread to start from.
        path: jnp.maximum(leaves[path].std, init_scale)
        if is_gaussian(leaves[path])
        else jnp.full_like(mean, init_scale)
        for path, mean in random_part(means, scales).items()
    }
    return means, scales, stds


def make_loss(
    f: Callable[..., Any],
    guide: Guide,
    scales: Scales,
    of_outputs: Loss,
    schedule: optax.Schedule,
    examples: int,
    particles: int = 1,
) -> Callable[..., Any]:
    """Makes the variational objective per example, as `jaxeff.training.make_epoch` takes it.

    Args:
        f: ``f(params, *inputs) -> outputs``.
        guide: The guide.
        scales: Prior standard deviation by parameter path (`prior_scales`).
        of_outputs: Loss of the outputs.
        schedule: KL weight by step.
        examples: Size of the whole data set.
        particles: Parameter draws per step.

    Returns:
        ``loss(key, numbers, state, batch, step)``; ``numbers`` from `Guide.start`.
    """

    def particle(key: PRNGKeyArray, numbers: Any, inputs: list[Any]) -> tuple[Any, Any]:
        params, divergence = guide.draw(key, numbers, scales)
        return f(params, *inputs), divergence

    def loss(key: Any, numbers: Any, state: Any, batch: Any, step: Any) -> tuple[Any, Any]:
        *inputs, targets = batch
        if particles == 1:  # not vmapped: grouped convolutions are slow on a CPU
            drawn = particle(key, numbers, inputs)
            outputs, divergences = jax.tree.map(lambda leaf: leaf[None], drawn)
        else:
            # On one batch: particles lower the variance over weights, not over examples.
            draws = jax.vmap(lambda k: particle(k, numbers, inputs))
            outputs, divergences = draws(jax.random.split(key, particles))
        nll, divergence = of_outputs(outputs, targets), divergences.mean()
        weight = jnp.asarray(schedule(step), nll.dtype)
        metrics = {"nll": nll, "kl": divergence, "kl_weight": weight}
        # Per example: the KL term belongs to the whole data set, so a batch's mean NLL gets
        # KL / N.
        return nll + weight / examples * divergence, (metrics, state)

    return loss


def train(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    stds: dict[str, Any],
    data: tuple[Any, ...],
    of_outputs: Loss,
    *,
    likelihood: Likelihood,
    guide: Guide,
    scales: Scales,
    epochs: int,
    batch_size: int,
    kl: float | optax.Schedule,
    optimizer: optax.GradientTransformation | None,
    particles: int,
    on_epoch: Callable[[int, Any, dict[str, Any]], None] | None = None,
    eval_fn: Callable[[Any], Mapping[str, Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
    **run: Unpack[RunOptions],
) -> SVIResult:
    """Minimises a variational objective; the arguments are those of `jaxeff.bayes.svi`.

    Args:
        key: Random key.
        f: ``f(params, *inputs) -> outputs``.
        params: Parameters at which the posterior means start.
        stds: Standard deviations to start with, by path.
        data: ``(*inputs, targets)``.
        of_outputs: Loss of the outputs.
        likelihood: Meaning of the outputs.
        guide: The guide.
        scales: Prior standard deviations by path.
        epochs: Passes over the data.
        batch_size: Examples per step.
        kl: Final weight of the KL term, or a schedule.
        optimizer: Any optax optimizer.
        particles: Parameter draws per step.
        on_epoch: Called with each epoch's index, state and record.
        eval_fn: ``eval_fn(posterior) -> metrics``.
        settings: Further facts that define the run, as JSON.
        **run: How the run is evaluated, kept and shown, as for `jaxeff.training.run_epochs`.

    Returns:
        The posterior and the history of the training.
    """
    check_count("particles", particles)
    examples = len(jax.tree.leaves(data)[0])
    steps = epochs * (examples // max(batch_size, 1))
    # Annealed from zero: a full KL term pulls an untrained network to the prior before it
    # fits.
    schedule = kl if callable(kl) else optax.linear_schedule(0.0, kl, max(steps, 1))
    optimizer = optax.adam(1e-3) if optimizer is None else optimizer
    loss = make_loss(f, guide, scales, of_outputs, schedule, examples, particles)

    def evaluate(train_state: TrainState) -> Mapping[str, Any]:
        return eval_fn(guide.posterior(train_state.params, scales)) if eval_fn else {}

    # `fold_in` with a number that no epoch has: the start and the epochs draw
    # independently.
    start = init(guide.start(jax.random.fold_in(key, START), params, stds), optimizer)
    identity = None
    if run.get("checkpoint") is not None:
        described = {
            **(settings or {}),
            "batch_size": batch_size,
            "particles": particles,
            "prior": scales,
            "likelihood": likelihood_name(likelihood),
            "guide": repr(guide),
            # A schedule is known by its values at nine points of the run.
            "kl": [float(schedule(step)) for step in np.linspace(0, steps, 9).astype(int)],
        }
        parts = describe_training(key, loss, optimizer, start, data, batch_size)
        identity = run_identity(key, data, described, parts)
    final, history = run_epochs(
        key,
        make_epoch(loss, optimizer, batch_size),
        start,
        data,
        epochs=epochs,
        eval_fn=evaluate if eval_fn else None,
        on_epoch=on_epoch,
        identity=identity,
        **run,
    )
    posterior = guide.posterior(final.params, scales)
    if isinstance(posterior, CorrelatedPosterior):
        posterior = replace(posterior, likelihood=likelihood)
    return SVIResult(posterior, history, likelihood)
