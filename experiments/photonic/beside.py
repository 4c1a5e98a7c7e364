"""Other ways to be uncertain, on the same network; and what random numbers cost in software."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import jaxeff
from experiments.classifiers import how_to_train
from experiments.harness import Row, Run
from experiments.photonic import network
from experiments.photonic.recipe import Settings
from experiments.timing import interleaved
from jaxeff.bayes import predict, svi
from jaxeff.nn import LeNet5
from jaxeff.training import cross_entropy, fit
from jaxeff.uncertainty import in_batches, sample_logits

BATCH, SAMPLES = 50, 100
"""Images of a timed prediction, and readings behind it."""


def measure(run: Run[Settings]) -> list[Row]:
    """Variational weights, sampled and by moments; and the network without anything random."""
    settings = run.settings
    x, y, epochs = network.first(settings, short=True)
    _, labels, domains = network.load(settings)
    f, params = jaxeff.functional(LeNet5(network.KNOWN, 1, pool="avg", rngs=nnx.Rngs(0)))
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
        {"part": "beside", "method": method, **network.figures(logits, labels, shown=True)}
        for method, logits in found.items()
    ]


def time(run: Run[Settings]) -> list[Row]:
    """Milliseconds of a prediction, and operations of a training step, by XLA's count."""
    settings = run.settings
    f, params = jaxeff.functional(LeNet5(network.KNOWN, 1, pool="avg", rngs=nnx.Rngs(0)))
    (x, y), _, domains = network.load(settings)
    images = domains["known"][:BATCH]
    light = settings.light(bits=None)
    spec = jaxeff.photonics.levels_per_activation(f, params, images, spec={"avg_pool*": light})
    model = network.Model(f, params, spec)
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
