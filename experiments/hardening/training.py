"""Trains a family of networks as one sweep and measures their curves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

from experiments.hardening.networks import build, quantize
from experiments.hardening.recipe import Family, Setting, Size
from experiments.report import Report
from experiments.trainable import Images
from jaxeff.hardening import Variable, sharpness_aware, variance_aware
from jaxeff.keys import fast_key
from jaxeff.noise import Additive, noisy
from jaxeff.robustness import noisy_accuracy
from jaxeff.training import cross_entropy, sweep

Row = dict[str, Any]
BATCH = 500
"""Test images evaluated at once."""
ACCELERATOR_CHUNKS = {"lenet5": 64, "lenet5-bn": 64, "vgg11": 4, "resnet18": 16}
"""Networks trained at once there; on a processor one, since vmapped convolutions are slow."""


def run_all(
    console: Console,
    seed: int,
    families: Sequence[Family],
    images: Images,
    size: Size,
    folder: Path,
) -> list[Row]:
    """Trains and tests every network of all families, saying what is finished.

    Args:
        console: Where to say it.
        seed: Of everything.
        families: What to train.
        images: The data.
        size: How long and how it is tested.
        folder: Where finished networks' figures are kept.

    Returns:
        The rows of `run`.
    """
    count = sum(len(family.settings) for family in families) * size.seeds
    console.rule(f"{folder.name}: {count} networks on {size.data}, {size.name} size")
    rows = []
    for family in families:
        rows += run(fast_key(seed), family, images, size, folder)
        console.print(f"{family.name}: {len(family.settings) * size.seeds} networks")
    return rows


def report(name: str, config: Row, rows: Sequence[Row], extra: Row) -> Report:
    """A report whose rows are flat: "curves" has theirs, in the order of rows, over the levels."""
    flat = [{k: v for k, v in row.items() if k != "curve"} for row in rows]
    return Report(name, config, flat, extra={"curves": [row["curve"] for row in rows], **extra})


def run(key: jax.Array, family: Family, images: Images, size: Size, folder: Path) -> list[Row]:
    """Trains and tests every network of a family, or takes what an earlier run has kept.

    Args:
        key: The study's key; networks of one seed start alike and see the same batches and noise.
        family: What to train.
        images: The data.
        size: How long and how it is tested.
        folder: Where finished networks' figures are kept.

    Returns:
        A row per network; "curve" holds its accuracies at the size's levels.
    """
    network = build(family.network, images.shape)
    settings = jax.tree.map(lambda *column: jnp.array(column, jnp.float32), *family.settings)
    steps = size.epochs * (len(images.train[1]) // size.batch_size)
    rate = family.rate or size.rate

    def quantized(scale: Any) -> Any:
        return quantize(network, family.scaling, family.bits, scale, images.shape)

    def loss_at(setting: Setting) -> Any:
        train, _, _ = quantized(setting.scale)
        if not family.noisy:
            return cross_entropy(train, mutable=True)

        def at(levels: Any) -> Any:
            return cross_entropy(noisy(train, network.noise(levels)), keyed=True, mutable=True)

        varying = variance_aware(at, form=family.form, ramp_steps=int(family.ramp * steps))
        return varying(Variable(setting.sigma, setting.theta, setting.alpha))

    def score(key: jax.Array, params: Any, state: Any, setting: Setting) -> dict[str, Any]:
        _, evaluate, _ = quantized(setting.scale)
        specs = dict.fromkeys(network.slots, Additive(jnp.asarray(size.levels, jnp.float32)))
        found = noisy_accuracy(
            key, evaluate, params, specs, images.test,
            repeats=size.repeats, batch=BATCH, state=state,
        )  # fmt: skip
        return {"accuracy": found.mean(axis=0)}

    result = sweep(
        key,
        loss_at,
        quantized(1.0)[2],
        settings,
        images.train,
        score=score,
        optimizer=_optimizer(optax.cosine_decay_schedule(rate, steps), size.decay, family.rho),
        epochs=size.epochs,
        batch_size=size.batch_size,
        seeds=size.seeds,
        chunk=1 if jax.default_backend() == "cpu" else ACCELERATOR_CHUNKS[family.network],
        checkpoint=folder / family.name,
        identity={
            "family": family.name, "rate": rate, "decay": size.decay, "ramp": family.ramp,
            "levels": size.levels, "test": [len(images.test[1]), size.repeats],
        },
    )  # fmt: skip
    return [
        {
            "network": family.network, "method": family.method, "scaling": family.scaling,
            "bits": family.bits, "rho": family.rho, **setting._asdict(), "seed": seed,
            "diverged": bool(result.diverged[seed, i]),
            "peak": float(np.max(result.scores["accuracy"][seed, i])),
            "images": size.images, "epochs": size.epochs, "size": size.name,
            "curve": result.scores["accuracy"][seed, i].tolist(),
        }
        for seed in range(size.seeds)
        for i, setting in enumerate(family.settings)
    ]  # fmt: skip


def _optimizer(rate: Any, decay: float, rho: float) -> optax.GradientTransformation:
    adam = optax.chain(optax.add_decayed_weights(decay), optax.adam(rate))
    return sharpness_aware(adam, rho, adaptive=True) if rho else adam
