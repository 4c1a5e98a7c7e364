"""Samples the MLP's posterior by Hamiltonian Monte Carlo, for a subset of the training images.

What makes 79,510 parameters feasible are the coordinates. The first layer's weights are turned into
the principal axes of the images, which leaves their prior as it is: what images tell of the weights
is then mostly a matter of single coordinates, and the diagonal mass matrix that warm-up finds can
make up for it. All weights are measured in standard deviations of their prior, so that the many
directions of which images tell nothing have unit scale from the start. Chains start at draws of the
SVI posterior.
"""

from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from experiments.dirty_mnist.networks import Function
from experiments.dirty_mnist.recipe import Sets, Settings, split, subset
from experiments.dirty_mnist.training import Trained
from experiments.harness import Run
from jaxeff.bayes import MCMCResult, hmc, prior_scales, sample
from jaxeff.bayes.posteriors import random_part, with_random
from jaxeff.data import normalize

MONITORED = 40


@dataclass(frozen=True)
class Sampled:
    """What the chains left behind, and the function that their draws are parameters of."""

    f: Function
    result: MCMCResult


def sample_mlp(
    trained: Trained,
    sets: Sets,
    run: Run[Settings],
) -> Sampled:
    """Runs the chains.

    Args:
        trained: The SVI posterior to start at.
        sets: The data.
        run: The study's.
    """
    key, settings = run.key, run.settings
    own = settings.mcmc
    data = subset(key, settings, sets)
    starts = sample(split(key, "mcmc"), trained.posterior, own.chains)
    params = jax.tree.map(lambda a: a[0], starts)
    units = prior_units(settings, params)
    run.say(
        f"Hamiltonian Monte Carlo, {own.chains} chains of {own.warmup} + {own.samples} iterations "
        f"on {len(data[1]):,} images"
    )

    axes = principal_axes(data[0], settings.data.source)

    def f(turned: Any, images: jax.Array) -> jax.Array:
        return trained.f(from_axes(turned, units, axes), images)

    result = hmc(
        split(key, "mcmc"), f, to_axes(params, units, axes), data,
        step_size=own.step_size, steps=own.steps, warmup=own.warmup, samples=own.samples,
        chains=own.chains, prior=1.0,
        init=jax.vmap(lambda p: to_axes(p, units, axes))(starts),
        monitor=(np.concatenate([images[:MONITORED] for images in sets.test.values()]),),
        checkpoint=run.work / "mcmc", settings={"data": asdict(settings.data)},
    )  # fmt: skip
    return Sampled(f, result)


def prior_units(settings: Settings, params: Any) -> Any:
    """Per parameter array, the standard deviation of its prior."""
    scales = prior_scales(settings.mcmc.prior, params)
    return with_random(
        params, {path: jnp.asarray(scales[path]) for path in random_part(params, scales)}
    )


def principal_axes(images: np.ndarray, source: str) -> Float[Array, "pixels pixels"]:
    """The eigenvectors of the second moments of normalised images, in columns."""
    pixels = normalize(images, source).reshape(len(images), -1)
    _, axes = jnp.linalg.eigh(pixels.T @ pixels)
    return axes


def to_axes(params: Any, units: Any, axes: Array) -> Any:
    """The MLP's parameters in the coordinates of the chains."""
    scaled = jax.tree.map(jnp.divide, params, units)
    return {**scaled, "fc1": {**scaled["fc1"], "kernel": axes.T @ scaled["fc1"]["kernel"]}}


def from_axes(turned: Any, units: Any, axes: Array) -> Any:
    """The inverse of `to_axes`."""
    scaled = {**turned, "fc1": {**turned["fc1"], "kernel": axes @ turned["fc1"]["kernel"]}}
    return jax.tree.map(jnp.multiply, scaled, units)
