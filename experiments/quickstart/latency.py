"""Latency of every method under XLA and TVM, measured side by side in one run."""

from typing import Any

import jax
import jax.numpy as jnp

import jaxeff
from experiments.harness import Run
from experiments.quickstart.compiled import Libraries
from experiments.quickstart.recipe import Sets, Settings, split
from experiments.quickstart.training import Models
from experiments.timing import interleaved
from jaxeff.bayes import draw, sample


def measure(
    run: Run[Settings], sets: Sets, models: Models, libraries: Libraries
) -> dict[str, dict[str, float]]:
    """Milliseconds per batch, by method.

    `svi30` draws its weights on every call, as a probabilistic library does; `svi30_presampled` is
    the fastest form, with the weights drawn beforehand.
    """
    key, settings = run.key, run.settings
    x = sets.test_images[: settings.batch]
    f = models.f
    keys = jax.random.split(split(key, "samples"), settings.samples)
    weights = sample(split(key, "samples"), models.posterior, settings.samples)
    point, propagate = jax.jit(f), jax.jit(jaxeff.moments(f))
    fresh = jax.jit(
        lambda posterior, keys, x: jax.lax.map(lambda k: f(draw(k, posterior), x), keys)
    )
    drawn = jax.jit(lambda weights, x: jax.lax.map(lambda w: f(w, x), weights))
    calls: dict[str, Any] = {
        "deterministic": lambda: point(models.params, x),
        "moments": lambda: propagate(models.posterior, x),
        "svi30": lambda: fresh(models.posterior, keys, x),
        "svi30_presampled": lambda: drawn(weights, x),
    }
    timings = interleaved(calls)
    host = {m: b for (m, target), b in libraries.bundles.items() if target == "host"}
    rounds: dict[str, list[float]] = {m: [] for m in host}
    for _ in range(15):
        for method, bundle in host.items():
            rounds[method].append(bundle.benchmark("local", number=3, repeat=1).median_ms)
    for method, values in rounds.items():
        low, middle, high = jnp.quantile(jnp.array(values), jnp.array([0.25, 0.5, 0.75]))
        timings[f"{method}_tvm"] = {"ms": float(middle), "spread": float(high - low)}
    return timings
