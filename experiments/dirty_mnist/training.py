"""The networks, their posteriors by SVI, and the MLP's by Hamiltonian Monte Carlo.

What makes sampling of 79,510 parameters, for a subset of the training images, feasible are the
coordinates. The first layer's weights are turned into the principal axes of the images, which
leaves their prior as it is: what images tell of the weights is then mostly a matter of single
coordinates, and the diagonal mass matrix that warm-up finds can make up for it. All weights are
measured in standard deviations of their prior, so that the many directions of which images tell
nothing have unit scale from the start. Chains start at draws of the SVI posterior.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float

import jaxeff
from experiments.dirty_mnist.recipe import Sets, Settings, split, subset
from experiments.harness import Run
from experiments.posteriors import Trainings, point_then_svi
from experiments.recipes import cosine_adam
from jaxeff.bayes import HMC, MCMCResult, mcmc, prior_scales, sample
from jaxeff.bayes.posteriors import random_part, with_random
from jaxeff.data import normalize
from jaxeff.nn import MLP, LeNet5

Function = Callable[[Any, jax.Array], jax.Array]


def build(network: str, source: str, key: jax.Array) -> tuple[Function, Any]:
    """``f(params, images)``, with uint8 images normalised by the thesis' statistics, and `params`.

    The networks are ``"mlp"`` (784-100-10) and ``"lenet5"``.
    """
    models: dict[str, Callable[[], nnx.Module]] = {
        "mlp": lambda: MLP((784, 100, 10), rngs=nnx.Rngs(key)),
        "lenet5": lambda: LeNet5(rngs=nnx.Rngs(key)),
    }
    f, params = jaxeff.functional(models[network]())

    def of_images(params: Any, images: jax.Array) -> jax.Array:
        return f(params, normalize(images, source))

    return of_images, params


@dataclass(frozen=True)
class Trained:
    """A posterior and the function that it is of."""

    f: Function
    posterior: Any
    history: list[dict[str, Any]]


def train(name: str, sets: Sets, run: Run[Settings]) -> Trained:
    """Trains one of the posteriors of `Settings.svi`, warm or cold; goes on after a kill."""
    key, settings = run.key, run.settings
    svi = settings.svi[name]
    model_key, point_key, svi_key = jax.random.split(split(key, name), 3)
    f, params = build(svi.network, settings.data.source, model_key)
    data = (sets.train_images, sets.train_labels)
    if svi.subset:
        data = subset(key, settings, sets)
    recorded = {**asdict(svi), "data": asdict(settings.data)}
    del recorded["prior"], recorded["subset"]  # `svi` keeps the prior and knows the data itself
    epochs = svi.pretrain_epochs, svi.epochs
    if not svi.pretrain_epochs:
        params = jax.tree.map(lambda p: jnp.full_like(p, svi.init_mean), params)

    def adam(steps: int, epochs: int) -> optax.GradientTransformation:
        return cosine_adam(svi.rate, epochs * steps) if svi.decay else optax.adam(svi.rate)

    trainings = Trainings(
        (point_key, svi_key), epochs,
        lambda steps: (adam(steps, epochs[0]), adam(steps, epochs[1])),
        (run.work / f"{name}-point.safetensors", run.work / f"{name}.safetensors"),
        {"batch_size": settings.batch_size, "settings": recorded},
    )  # fmt: skip
    _, result = point_then_svi(
        f, params, data, trainings, lambda text: run.say(f"{name}: {text}"),
        prior=svi.prior, kl=settings.kl, init_scale=svi.init_scale,
        checkpoint_every=max(1, svi.epochs // 50),
    )  # fmt: skip
    return Trained(f, result.posterior, result.history)


MONITORED = 40


@dataclass(frozen=True)
class Sampled:
    """What the chains left behind, and the function that their draws are parameters of."""

    f: Function
    result: MCMCResult


def sample_mlp(name: str, sets: Sets, run: Run[Settings]) -> Sampled:
    """Runs the chains, which start at draws of the posterior of that name by SVI."""
    key, settings = run.key, run.settings
    trained = train(name, sets, run)
    prior = settings.mcmc.prior if name == "mlp" else settings.svi[name].prior
    hmc = settings.mcmc
    data = subset(key, settings, sets)
    starts = sample(split(key, "mcmc"), trained.posterior, hmc.chains)
    params = jax.tree.map(lambda a: a[0], starts)
    units = prior_units(prior, params)
    run.say(
        f"Hamiltonian Monte Carlo, {hmc.chains} chains of {hmc.warmup} + {hmc.samples} iterations "
        f"on {len(data[1]):,} images"
    )

    axes = principal_axes(data[0], settings.data.source)

    def f(turned: Any, images: jax.Array) -> jax.Array:
        return trained.f(from_axes(turned, units, axes), images)

    result = mcmc(
        split(key, "mcmc"), f, to_axes(params, units, axes), data,
        HMC(step_size=hmc.step_size, steps=hmc.steps), warmup=hmc.warmup, samples=hmc.samples,
        chains=hmc.chains, prior=1.0,
        init=jax.vmap(lambda p: to_axes(p, units, axes))(starts),
        monitor=(np.concatenate([images[:MONITORED] for images in sets.test.values()]),),
        checkpoint=run.work / ("mcmc" if name == "mlp" else f"{name}-mcmc"),
        settings={"data": asdict(settings.data)},
    )  # fmt: skip
    return Sampled(f, result)


def prior_units(prior: float | str, params: Any) -> Any:
    """Per parameter array, the standard deviation of its prior."""
    scales = prior_scales(prior, params)
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
