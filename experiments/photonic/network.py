"""Training by the Gaussian model, evaluating by either."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from scipy.special import log_softmax, logsumexp

import jaxeff
from experiments.classifiers import how_to_train
from experiments.harness import Row, Run
from experiments.photonic.recipe import Settings
from jaxeff import data
from jaxeff.compression import Int, quantized
from jaxeff.nn import LeNet5
from jaxeff.photonics import (
    ChaoticLight,
    divergence,
    level_logits,
    levels_per_activation,
    photonic,
    replace_levels,
)
from jaxeff.robustness import one_peak_pvalue, peaks
from jaxeff.training import fit, stateless
from jaxeff.uncertainty import auroc, in_batches, predictive_log_probs

KNOWN = 9
"""Digits below it are known; it isn't."""
LEAST = 1e-16
"""Nats that float64 can tell from none."""
EDGES = np.linspace(-10, 0.5, 43)
"""Of histograms of the logarithm to base 10 of mutual information in nats."""
Domains = Mapping[str, Any]


@dataclass(frozen=True)
class Model:
    """A trained network."""

    f: Callable[..., Any]  # it, without light
    params: Any  # its parameters
    # the light of its poolings, of the Gaussian model, with learnt levels
    spec: dict[str, ChaoticLight]


@cache
def load(settings: Settings) -> tuple[tuple[Any, Any], Any, Domains]:
    """Training images and labels of known digits, test labels, and test images by domain."""
    dataset, name = data.load(settings.data), settings.data

    def scaled(images: Any) -> Any:
        return jnp.asarray(data.normalize(images, name))

    known, test = dataset.train_labels < KNOWN, dataset.test_labels < KNOWN
    count, half = settings.test_images, settings.test_images // 2
    labels = _spread(dataset.test_labels[test], count)
    domains = {
        "known": scaled(_spread(dataset.test_images[test], count)),
        "nine": scaled(_spread(dataset.test_images[~test], half)),
    }
    if settings.other:
        domains["other"] = scaled(_spread(data.load(settings.other).test_images, half))
    train = np.asarray(scaled(dataset.train_images[known])), dataset.train_labels[known]
    return train, labels, domains


WATCHED = 500
"""Images of each domain behind what is told of an epoch."""


def _spread(array: np.ndarray, count: int) -> np.ndarray:
    """So many entries from all over: the first half of MNIST's test images is the harder one."""
    return array[np.linspace(0, len(array) - 1, min(count, len(array))).astype(int)]


def train(run: Run[Settings], seed: int, *, short: bool = True, bits: int | None = None) -> Model:
    """Trains with the Gaussian model, variationally.

    Args:
        run: The run.
        seed: Of the weights and of all draws.
        short: Whether it is one of the shorter trainings.
        bits: Bit width of weights and activations; the settings' if None.
    """
    settings = run.settings
    epochs = settings.short_epochs if short else settings.epochs
    return _fitted(run, seed, short, bits, epochs, f"{seed}-{short}-{bits}")[0]


def watched(run: Run[Settings], seed: int) -> list[Row]:
    """Trains for longer than the short trainings, and looks at the network after every epoch."""
    settings = run.settings
    _, labels, domains = load(settings)
    few = {name: images[:WATCHED] for name, images in domains.items()}

    def look(model: Model) -> Row:
        drawn = draw(run.fast_key, model, few, settings.samples, model="gaussian")
        quality = figures(drawn, labels)
        gap = quality["mi_nine"] - quality["mi_known"]
        return {name: float(quality[name]) for name in ("accuracy", "auroc_nine")} | {
            "mi_gap": float(gap), "mi_known": float(quality["mi_known"]),
            "mi_nine": float(quality["mi_nine"]), "valley": float(quality["valley"]),
        }  # fmt: skip

    _, history = _fitted(run, seed, True, None, settings.watched, f"{seed}-watched", look)
    return [{"seed": seed, **row, "epoch": row["epoch"] + 1} for row in history]


def _fitted(
    run: Run[Settings], seed: int, short: bool, bits: int | None, epochs: int, name: str,
    look: Callable[[Model], Row] | None = None,
) -> tuple[Model, list[Row]]:  # fmt: skip
    settings = run.settings
    count = settings.short_images if short else settings.images
    x, y = (part[:count] for part in load(settings)[0])
    f = network(bits or settings.weight_bits)
    _, params = jaxeff.functional(LeNet5(KNOWN, 1, pool="avg", rngs=nnx.Rngs(seed)))
    light = settings.light(bits=bits or settings.activation_bits, model="gaussian")
    spec = levels_per_activation(f, params, x[:1], {"avg_pool*": light})

    def loss(key: Any, numbers: Any, batch: Any) -> Any:
        inputs, labels = batch
        logits, nats = divergence(f, replace_levels(spec, numbers["raw"]))(
            key, numbers["params"], inputs
        )
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return nll + settings.kl * nats.mean(), {"nll": nll, "nats": nats.mean()}

    def made(numbers: Any) -> Model:
        return Model(f, numbers["params"], replace_levels(spec, numbers["raw"]))

    result = fit(
        jax.random.fold_in(run.fast_key, seed), stateless(loss),
        {"params": params, "raw": level_logits(spec)}, (x, y),
        checkpoint=run.work / f"{name}.safetensors",
        eval_fn=None if look is None else lambda state: look(made(state.params)),
        **how_to_train(settings.rate, (x, y), epochs, settings.batch_size),
    )  # fmt: skip
    return made(result.params), [*result.history]


@cache
def network(bits: int) -> Callable[..., Any]:
    """LeNet-5 with quantized weights, one function for all that share programs."""
    f, _ = jaxeff.functional(LeNet5(KNOWN, 1, pool="avg", rngs=nnx.Rngs(0)))
    return quantized(f, {"*:linear": Int(bits, symmetric=False)})


def draw(
    key: jax.Array, trained: Model, domains: Domains, samples: int, **fields: Any
) -> dict[str, Any]:
    """Logits `[samples, images, classes]` by domain, in batches; all readings in one program.

    The `fields` are what of the light is another than in training.
    """
    lights = {site: replace(light, **fields) for site, light in trained.spec.items()}
    levels = {site: light.noise for site, light in trained.spec.items()}
    fixed = tuple((site, replace(light, noise=0.5)) for site, light in lights.items())
    run = _program(trained.f, fixed, samples)
    results = {}
    for name, images in domains.items():
        step = min(250, len(images))
        parts = [
            run(jax.random.fold_in(key, i), trained.params, levels, images[i : i + step])
            for i in range(0, len(images) - step + 1, step)
        ]
        results[name] = jnp.concatenate(parts, 1)
    return results


@cache
def _program(
    f: Callable[..., Any], lights: tuple[tuple[str, ChaoticLight], ...], samples: int
) -> Callable[..., Any]:
    """Readings of a batch, compiled once for all parameters and levels of noise."""

    @jax.jit
    def run(key: Any, params: Any, levels: Any, images: Any) -> Any:
        spec = {site: replace(light, noise=levels[site]) for site, light in lights}
        g = photonic(f, spec)
        return jax.lax.map(lambda k: g(k, params, images), jax.random.split(key, samples))

    return run


def figures(logits: Mapping[str, Any], labels: Any, *, shown: bool = False) -> Row:
    """Accuracy, and how well mutual information tells domains apart."""
    right = predictive_log_probs(logits["known"]).argmax(-1)
    information = {name: mutual_information(values) for name, values in logits.items()}
    known, nine = information["known"], information["nine"]
    row: Row = {
        "accuracy": jnp.mean(right == labels[: len(right)]),
        "auroc_nine": _told(known, nine),
        "entropy_nine": _told(*(entropies(logits[name]) for name in ("known", "nine"))),
        **{f"mi_{name}": values.mean() for name, values in information.items()},
    }
    if "other" in information:
        row["auroc_other"] = _told(known, information["other"])
        row["entropy_other"] = _told(*(entropies(logits[name]) for name in ("known", "other")))
    logs = {name: np.log10(np.maximum(values, LEAST)) for name, values in information.items()}
    row |= _shape(np.concatenate([_spread(logs["known"], len(nine)), logs["nine"]]))
    if shown:
        for name, values in logs.items():
            counts, _ = np.histogram(values, EDGES)
            row[f"histogram_{name}"] = [*map(float, counts / len(values))]
    return row


def mutual_information(logits: Any) -> np.ndarray:
    """Of label and reading, in nats, in float64: in float32 surely known digits have none."""
    logs = log_softmax(np.asarray(logits, np.float64), -1)
    mean = logsumexp(logs, 0) - np.log(len(logs))
    return np.maximum((np.exp(logs) * (logs - mean)).sum(-1).mean(0), 0)


def _told(known: np.ndarray, unknown: np.ndarray) -> float:
    return float(auroc(jnp.asarray(known), jnp.asarray(unknown)))


def dark(trained: Model, domains: Domains) -> dict[str, Any]:
    """Logits `[1, images, classes]` by domain, of the same parameters without any light."""
    f = jax.jit(trained.f)
    return {
        name: in_batches(lambda x: f(trained.params, x), images, 250)[None]
        for name, images in domains.items()
    }


def entropies(logits: Any) -> np.ndarray:
    """Of the mean prediction, in nats: what a network without randomness has as well."""
    logs = logsumexp(log_softmax(np.asarray(logits, np.float64), -1), 0) - np.log(len(logits))
    return -(np.exp(logs) * logs).sum(-1)


def _shape(values: np.ndarray) -> Row:
    """Two peaks, and whether one would do as well."""
    if len(np.unique(values)) < 10:
        return {"valley": 1.0, "low": None, "high": None, "one_peak": 1.0}
    tops = peaks(values)
    return {
        "valley": tops.valley, "low": 10**tops.low, "high": 10**tops.high,
        "one_peak": one_peak_pvalue(jax.random.key(0), values),
    }  # fmt: skip
