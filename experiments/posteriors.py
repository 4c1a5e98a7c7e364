"""Posteriors that several studies measure: around given weights, and by variational inference."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax

from jaxeff.bayes import SVIResult, svi
from jaxeff.moment_propagation import Gaussian
from jaxeff.training import cross_entropy, fit


def posterior_around(params: Any) -> Any:
    """A posterior around parameters: every leaf a `Gaussian`, as SVI returns it."""
    return jax.tree.map(lambda w: Gaussian(w, 1e-4 + 1e-2 * w * w), params)


class Trainings(NamedTuple):
    """Two trainings, one after the other: of the point estimate, and of its posterior."""

    keys: Sequence[jax.Array]
    epochs: tuple[int, int]  # without any of the first, the posterior starts at what is given
    # makes both, from the number of batches in an epoch
    optimizers: Callable[[int], tuple[optax.GradientTransformation, optax.GradientTransformation]]
    files: tuple[Path, Path]  # checkpoints
    # what both are told: ``batch_size``, and ``settings`` that a checkpoint must have
    shared: Mapping[str, Any]


def point_then_svi(
    f: Callable[..., Any],  # the network
    params: Any,  # its initial parameters
    data: tuple[Any, Any],  # inputs and labels
    trainings: Trainings,
    say: Callable[[str], None] = lambda text: None,  # prints a line
    **options: Any,  # what `svi` is told besides
) -> tuple[Any, SVIResult]:
    """Trains a classifier by maximum likelihood, then its posterior; both go on after a kill.

    Returns:
        Parameters of the point estimate, and the result of `svi`.
    """
    keys, epochs, optimizers, files, shared = trainings
    first, second = optimizers(len(data[1]) // shared["batch_size"])
    if epochs[0]:
        say(f"point estimate, {epochs[0]} epochs")
        params = fit(
            keys[0], cross_entropy(f), params, data, optimizer=first, epochs=epochs[0],
            checkpoint=files[0], **shared,
        ).params  # fmt: skip
    say(f"stochastic variational inference, {epochs[1]} epochs")
    result = svi(
        keys[1], f, params, data, optimizer=second, epochs=epochs[1], checkpoint=files[1],
        **shared, **options,
    )  # fmt: skip
    return params, result
