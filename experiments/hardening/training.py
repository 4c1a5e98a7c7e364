"""Trains a family of networks as one sweep and measures their curves."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.hardening.networks import build, quantize
from experiments.hardening.recipe import Family, Setting
from experiments.harness import Row, Run
from experiments.trainable import Images, load_images
from jaxeff.hardening import VariableLevel, sharpness_aware, variance_aware
from jaxeff.noise import Additive, noisy
from jaxeff.robustness import noisy_accuracy
from jaxeff.training import cross_entropy, sweep

BATCH = 500
"""Test images evaluated at once."""
ACCELERATOR_CHUNKS = {"lenet5": 64, "lenet5-bn": 64, "vgg11": 4, "resnet18": 16}
"""Networks trained at once there; on a processor one, since vmapped convolutions are slow."""


@functools.cache
def images(run: Run[Any]) -> Images:
    """Loads the data of a run."""
    return load_images(run.settings.data, run.settings.images, run.settings.test_images)


def train(run: Run[Any], family: Family) -> list[Row]:
    """Trains and tests every network of a family, from the epoch where it was killed.

    Args:
        run: The study's; networks of one seed start alike and see the same batches and noise.
        family: What to train.

    Returns:
        A row per network; "curve" holds its accuracies at the levels.
    """
    data = images(run)
    size = run.settings
    network = build(family.network, data.shape)
    settings = jax.tree.map(lambda *column: jnp.array(column, jnp.float32), *family.settings)
    steps = size.epochs * (len(data.train[1]) // size.batch_size)
    rate = family.rate or size.rate

    def quantized(scale: Any) -> Any:
        return quantize(network, family.scaling, family.bits, scale, data.shape)

    def loss_at(setting: Setting) -> Any:
        train, _, _ = quantized(setting.scale)
        if not family.noisy:
            return cross_entropy(train, mutable=True)

        def at(levels: Any) -> Any:
            return cross_entropy(noisy(train, network.noise(levels)), keyed=True, mutable=True)

        varying = variance_aware(at, form=family.form, ramp_steps=int(family.ramp * steps))
        return varying(VariableLevel(setting.sigma, setting.theta, setting.alpha))

    def score(key: jax.Array, params: Any, state: Any, setting: Setting) -> dict[str, Any]:
        _, evaluate, _ = quantized(setting.scale)
        specs = dict.fromkeys(network.slots, Additive(jnp.asarray(size.levels, jnp.float32)))
        found = noisy_accuracy(
            key, evaluate, params, specs, data.test,
            repeats=size.repeats, batch=BATCH, state=state,
        )  # fmt: skip
        return {"accuracy": found.mean(axis=0)}

    result = sweep(
        run.fast_key,
        loss_at,
        quantized(1.0)[2],
        settings,
        data.train,
        score=score,
        optimizer=_optimizer(optax.cosine_decay_schedule(rate, steps), size.decay, family.rho),
        epochs=size.epochs,
        batch_size=size.batch_size,
        seeds=size.seeds,
        chunk=1 if jax.default_backend() == "cpu" else ACCELERATOR_CHUNKS[family.network],
        checkpoint=run.work / family.name,
        identity={
            "family": family.name, "rate": rate, "decay": size.decay, "ramp": family.ramp,
            "levels": size.levels, "test": [len(data.test[1]), size.repeats],
        },
    )  # fmt: skip
    return [
        {
            "network": family.network, "method": family.method, "scaling": family.scaling,
            "bits": family.bits, "rho": family.rho, **setting._asdict(), "seed": seed,
            "diverged": bool(result.diverged[seed, i]),
            "peak": float(np.max(result.scores["accuracy"][seed, i])),
            "images": size.images, "epochs": size.epochs, "size": run.size,
            "curve": result.scores["accuracy"][seed, i].tolist(),
        }
        for seed in range(size.seeds)
        for i, setting in enumerate(family.settings)
    ]  # fmt: skip


def _optimizer(rate: Any, decay: float, rho: float) -> optax.GradientTransformation:
    adam = optax.chain(optax.add_decayed_weights(decay), optax.adam(rate))
    return sharpness_aware(adam, rho, adaptive=True) if rho else adam
