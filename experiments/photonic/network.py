"""Training by the Gaussian model, evaluating by either, and beside other ways to be uncertain."""

from __future__ import annotations

import functools
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
from experiments.timing import interleaved
from jaxeff import data
from jaxeff.bayes import predict, svi
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
from jaxeff.training import cross_entropy, fit, stateless
from jaxeff.uncertainty import auroc, in_batches, predictive_log_probs, sample_logits

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

    def carried(self, **fields: Any) -> Callable[..., Any]:
        """The network under its light, with some fields changed."""
        spec = {site: replace(light, **fields) for site, light in self.spec.items()}
        return photonic(self.f, spec)


@cache
def load(settings: Settings) -> tuple[tuple[Any, Any], Any, Domains]:
    """Training images and labels of known digits, test labels, and test images by domain."""
    found, name = data.load(settings.data), settings.data

    def scaled(images: Any) -> Any:
        return jnp.asarray(data.normalize(images, name))

    known, test = found.train_labels < KNOWN, found.test_labels < KNOWN
    count, half = settings.test_images, settings.test_images // 2
    labels = _spread(found.test_labels[test], count)
    domains = {
        "known": scaled(_spread(found.test_images[test], count)),
        "nine": scaled(_spread(found.test_images[~test], half)),
    }
    if settings.other:
        domains["other"] = scaled(_spread(data.load(settings.other).test_images, half))
    train = np.asarray(scaled(found.train_images[known])), found.train_labels[known]
    return train, labels, domains


def _spread(array: np.ndarray, count: int) -> np.ndarray:
    """So many entries from all over: the first half of MNIST's test images is the harder one."""
    return array[np.linspace(0, len(array) - 1, min(count, len(array))).astype(int)]


def first(settings: Settings, short: bool) -> tuple[Any, Any, int]:
    """The training images and labels, and the passes over them."""
    (x, y), *_ = load(settings)
    count = settings.short_images if short else settings.images
    return x[:count], y[:count], settings.short_epochs if short else settings.epochs


def train(
    run: Run[Settings], seed: int, *, short: bool = True, bits: int | None = None,
    kl: float | None = None, free: bool = False,
) -> tuple[Model, list[Row]]:  # fmt: skip
    """Trains with the Gaussian model, variationally.

    Args:
        run: The run.
        seed: Of the weights and of all draws.
        short: Whether it is one of the shorter trainings.
        bits: Bit width of weights and activations; the settings' if None.
        kl: Weight of the divergence; the settings' if None.
        free: Whether levels know no bounds.

    Returns:
        The network, and what was seen after every epoch.
    """
    settings = run.settings
    x, y, epochs = first(settings, short)
    f, _ = network(bits or settings.weight_bits)
    _, params = jaxeff.functional(LeNet5(KNOWN, 1, pool="avg", rngs=nnx.Rngs(seed)))
    light = settings.light(
        bits=bits or settings.activation_bits, model="free" if free else "gaussian"
    )
    spec = levels_per_activation(f, params, x[:1], spec={"avg_pool*": light})
    weight = settings.kl if kl is None else kl

    def loss(key: Any, numbers: Any, batch: Any) -> Any:
        inputs, labels = batch
        logits, nats = divergence(f, replace_levels(spec, numbers["raw"]))(
            key, numbers["params"], inputs
        )
        nll = optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()
        return nll + weight * nats.mean(), {"nll": nll, "nats": nats.mean()}

    _, labels, domains = load(settings)
    few = {name: images[:250] for name, images in domains.items()}

    def watch(state: Any) -> dict[str, Any]:
        model = Model(f, state.params["params"], replace_levels(spec, state.params["raw"]))
        logits = draw(run.fast_key, model, few, 10)
        found = figures(logits, labels[:250])
        return {name: float(found[name]) for name in ("accuracy", "auroc_nine")}

    result = fit(
        jax.random.fold_in(run.fast_key, seed), stateless(loss),
        {"params": params, "raw": level_logits(spec)}, (x, y),
        eval_fn=None if short else watch,
        checkpoint=run.work / f"{seed}-{short}-{bits}-{weight:g}-{free}.safetensors",
        **how_to_train(settings.rate, (x, y), epochs, settings.batch_size),
    )  # fmt: skip
    numbers = result.params
    return Model(f, numbers["params"], replace_levels(spec, numbers["raw"])), result.history


@cache
def network(bits: int) -> tuple[Callable[..., Any], Any]:
    """LeNet-5 with quantized weights, one function for all that share programs; and parameters."""
    f, params = jaxeff.functional(LeNet5(KNOWN, 1, pool="avg", rngs=nnx.Rngs(0)))
    return quantized(f, {"*:linear": Int(bits)}), params


def draw(
    key: jax.Array, trained: Model, domains: Domains, samples: int, **fields: Any
) -> dict[str, Any]:
    """Logits `[samples, images, classes]` by domain, in batches; all readings in one program.

    The `fields` are what of the light is another than in training.
    """
    lights = {site: replace(light, **fields) for site, light in trained.spec.items()}
    levels = {site: light.noise for site, light in trained.spec.items()}
    if "noise" in fields:  # of the same shape: the same program for all of a budget
        levels = {site: jnp.full_like(level, fields["noise"]) for site, level in levels.items()}
    fixed = tuple((site, replace(light, noise=0.5)) for site, light in lights.items())
    run = _program(trained.f, fixed, samples)
    found = {}
    for name, images in domains.items():
        step = min(250, len(images))
        parts = [
            run(jax.random.fold_in(key, i), trained.params, levels, images[i : i + step])
            for i in range(0, len(images) - step + 1, step)
        ]
        found[name] = jnp.concatenate(parts, 1)
    return found


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
        row |= {f"one_peak_{name}": _shape(values)["one_peak"] for name, values in logs.items()}
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
    found = peaks(values)
    return {
        "valley": found.valley, "low": 10**found.low, "high": 10**found.high,
        "one_peak": one_peak_pvalue(jax.random.key(0), values),
    }  # fmt: skip


BATCH, SAMPLES = 50, 100
"""Images of a timed prediction, and readings behind it."""


def others(run: Run[Settings]) -> list[Row]:
    """Variational weights, sampled and by moments; and the network without anything random."""
    settings = run.settings
    x, y, epochs = first(settings, short=True)
    _, labels, domains = load(settings)
    f, params = jaxeff.functional(LeNet5(KNOWN, 1, pool="avg", rngs=nnx.Rngs(0)))
    how = how_to_train(settings.rate, (x, y), epochs, settings.batch_size)
    plain = fit(run.fast_key, cross_entropy(f), params, (x, y), **how).params
    result = svi(run.fast_key, f, plain, (x, y), init_scale=1e-2, **how)
    moments = jax.jit(jaxeff.moments(f))
    found: dict[str, dict[str, Any]] = {"plain": {}, "SVI": {}, "PFP": {}}
    for name, images in domains.items():
        found["plain"][name] = jax.jit(f)(plain, images)[None]
        found["SVI"][name] = predict(run.key, f, result.posterior, images, samples=settings.samples)
        gaussian = in_batches(lambda x: moments(result.posterior, x), images, 250)
        found["PFP"][name] = sample_logits(run.key, gaussian, 100)
    return [
        {"part": "beside", "method": method, **figures(logits, labels, shown=True)}
        for method, logits in found.items()
    ]


def timed(run: Run[Settings]) -> list[Row]:
    """Milliseconds of a prediction, and operations of a training step, by XLA's count."""
    settings = run.settings
    f, params = jaxeff.functional(LeNet5(KNOWN, 1, pool="avg", rngs=nnx.Rngs(0)))
    (x, y), _, domains = load(settings)
    images = domains["known"][:BATCH]
    light = settings.light(bits=None)
    spec = jaxeff.photonics.levels_per_activation(f, params, images, spec={"avg_pool*": light})
    model = Model(f, params, spec)
    key = run.key
    physical = model.carried(model="physical", levels=settings.levels)
    calls = {
        # Other images in every pass, or the compiler would make one of all.
        "deterministic": (lambda key, p, x: f(p, x * jax.random.uniform(key)), SAMPLES, key),
        "surrogate": (model.carried(), SAMPLES, key),
        "surrogate, fast key": (model.carried(), SAMPLES, run.fast_key),
        "physical": (physical, SAMPLES, key),
        "physical, fast key": (physical, SAMPLES, run.fast_key),
    }
    compiled = {}
    for name, (g, count, own) in calls.items():
        every = jax.jit(lambda k, p, x, g=g, n=count: jax.lax.map(
            lambda k: g(k, p, x), jax.random.split(k, n)
        ))  # fmt: skip
        compiled[name] = (every.lower(own, params, images).compile(), own)
    meters = {
        name: functools.partial(call, own, params, images) for name, (call, own) in compiled.items()
    }
    times = interleaved(meters, rounds=settings.rounds)
    readings = settings.slots * sum(int(jnp.size(light.noise)) for light in spec.values())
    rows: list[Row] = []
    without = times["deterministic"]["ms"]
    for name, (_, count, _) in calls.items():
        each = times[name]["ms"] / BATCH
        rows.append({
            "part": "time", "method": name, "samples": count, "ms": each,
            "random share": 1 - without / times[name]["ms"],
            "readings": readings * count if name != "deterministic" else 0,
        })  # fmt: skip
    batch = x[: settings.batch_size], y[: settings.batch_size]
    steps = {
        "deterministic": lambda key, p: cross_entropy(f)(key, p, None, batch, 0)[0],
        "surrogate": lambda key, p: cross_entropy(model.carried(), keyed=True)(
            key, p, None, batch, 0
        )[0],
    }
    flops = {}
    for name, step in steps.items():
        program: Any = jax.jit(jax.value_and_grad(step, 1)).lower(run.fast_key, params).compile()
        flops[name] = float(program.cost_analysis()["flops"])
    rows.append({
        "part": "time", "method": "training step, operations",
        "ratio": flops["surrogate"] / flops["deterministic"],
    })  # fmt: skip
    return rows
