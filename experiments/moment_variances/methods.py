"""Every way to a variance, on one network: how right it is and what it costs.

- diagonal: `moments(f, shared=False)`;
- one factor: its variances times the one number that suits the held-out inputs best;
- calibrated: `calibrate_moments`, a factor per site and channel;
- correlated: `moments(f, correlations=True)`;
- correlated, calibrated: both;
- n samples: weights that were drawn beforehand, or inputs drawn in the call.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.harness import Row
from experiments.moment_variances.networks import Case
from experiments.moment_variances.oracle import compared, draws, of_samples
from experiments.moment_variances.recipe import Settings
from experiments.timing import measure_rounds, metered, ratio
from jaxeff.bayes import sample
from jaxeff.moment_propagation import calibrate_moments, is_gaussian, moments

DIAGONAL, ONE, CALIBRATED = "diagonal", "one factor", "calibrated"
CORRELATED, BOTH = "correlated", "correlated, calibrated"
JOINT = "joint logits, calibrated"
"""For detection: variances are those of both."""
METHODS = (DIAGONAL, ONE, CALIBRATED, CORRELATED, BOTH)
BATCHES = (1, 10)
BASE = 30
"""Samples that the passes are compared with, as many as the source draws."""
Pass = tuple[Callable[..., Any], Any]


def passes(
    key: jax.Array, f: Callable[..., Any], posterior: Any, seen: Any, samples: int, chunk: int = 20
) -> dict[str, Pass]:
    """Moment passes by method, jitted, each with what it takes in the place of the posterior.

    Args:
        key: For calibration.
        f: The network.
        posterior: Its posterior.
        seen: The inputs that calibration sees.
        samples: How many samples it draws.
        chunk: How many of them are run at once.
    """
    plain = jax.jit(moments(f, shared=False))
    correlated = jax.jit(moments(f, correlations=True))
    given = {
        correlations: calibrate_moments(
            key, f, posterior, seen, samples=samples, chunk=chunk, correlations=correlations
        )
        for correlations in (False, True)
    }
    return {
        DIAGONAL: (plain, posterior),
        CALIBRATED: (plain, given[False]),
        CORRELATED: (correlated, posterior),
        BOTH: (correlated, given[True]),
    }


def measure(name: str, case: Case, settings: Settings, key: jax.Array) -> list[Row]:
    """Rows of one network, one per method."""
    keys = jax.random.split(key, 5)
    f, posterior = case.f, case.posterior
    seen = case.inputs(keys[0], settings.calibration)
    held_out = [case.inputs(k, 10) for k in jax.random.split(keys[1], settings.held_out // 10)]
    chunk = 1 if case.convolutional else 20
    methods = passes(keys[2], f, posterior, seen, settings.samples, chunk)
    found = {
        method: np.concatenate([np.asarray(g(given, x).var, np.float64) for x in held_out])
        for method, (g, given) in methods.items()
    }
    together = jax.tree.map(lambda *parts: jnp.concatenate(parts), *held_out)
    outputs = draws(keys[3], f, (posterior, together), settings.oracle, chunk)
    found[ONE] = found[DIAGONAL] * np.exp(np.log(outputs.var(0, ddof=1) / found[DIAGONAL]).mean())
    times = {
        batch: _times(case, methods, case.inputs(keys[4], batch), settings.rounds, keys[4])
        for batch in (BATCHES if settings.rounds else ())
    }
    rows = [
        {
            "network": name,
            "method": method,
            **_costs(times, "diagonal" if method == ONE else method),
        }
        | compared(found[method], outputs, 0)
        for method in METHODS
    ]
    # Sampling takes as long as it has samples; only those of the base are timed.
    return rows + [
        {"network": name, "method": f"{n} samples", **_costs(times, f"{BASE} samples", n / BASE)}
        | of_samples(n, outputs)
        for n in settings.counts
        if 2 * n <= len(outputs)
    ]


def _times(
    case: Case, methods: Mapping[str, Pass], x: Any, rounds: int, key: jax.Array
) -> dict[str, list[float]]:
    """Milliseconds of every method and of sampling, round by round."""
    calls: dict[str, Callable[[], Any]] = {
        method: partial(g, given, x) for method, (g, given) in methods.items()
    }
    calls[f"{BASE} samples"] = _sampling(case, x, key)
    return measure_rounds({name: metered(call) for name, call in calls.items()}, rounds)


def _sampling(case: Case, x: Any, key: jax.Array) -> Callable[[], Any]:
    """The mean and variance of samples, as fast as is known here."""
    f = case.f
    if is_gaussian(x):

        @jax.jit
        def of_inputs(params: Any, x: Any, key: jax.Array) -> Any:
            drawn = x.sample(key, (BASE,))
            y = f(params, drawn.reshape(-1, *x.mean.shape[1:])).reshape(BASE, len(x.mean), -1)
            return y.mean(0), y.var(0)

        return lambda: of_inputs(case.posterior, x, key)

    @jax.jit
    def of_weights(weights: Any, x: Any) -> Any:
        at = lambda one: f(one, x)  # noqa: E731
        y = jax.lax.map(at, weights) if case.convolutional else jax.vmap(at)(weights)
        return y.mean(0), y.var(0)

    weights = sample(key, case.posterior, BASE)
    return lambda: of_weights(weights, x)


def _costs(
    times: Mapping[int, Mapping[str, list[float]]], method: str, factor: float = 1.0
) -> dict[str, float]:
    """A method's time over that of the diagonal and of sampling, by batch."""
    found = {}
    for batch, by_method in times.items():
        for base in (DIAGONAL, f"{BASE} samples"):
            over = ratio(by_method[method], by_method[base])
            found[f"over {base}, batch {batch}"] = factor * over
    return found
