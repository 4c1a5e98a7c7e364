"""Every way to a variance, on one network: how right it is, and what it costs.

- default: `moments(f)`, which chooses the diagonal or the linear method;
- diagonal: `moments(f, method="diagonal")`;
- calibrated: `moments(f)` with the factors of `calibrate_moments`;
- linear: `moments(f, method="linear")`;
- last layer only: the diagonal of a posterior that is random in its last layer alone;
- 30 draws of the weights.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import numpy as np

from experiments.beyond.moment_variances.networks import Case
from experiments.beyond.moment_variances.oracle import Outputs, compared, mean_error, of_samples
from experiments.beyond.moment_variances.quality import quality
from experiments.beyond.moment_variances.recipe import SVI, Settings
from experiments.harness import Row
from experiments.timing import measure_rounds, metered, ratio
from jaxeff.bayes import predict
from jaxeff.moment_propagation import (
    MomentsError,
    calibrate_moments,
    is_gaussian,
    moments,
    moments_check,
)
from jaxeff.program import trace
from jaxeff.uncertainty import sample_logits

DEFAULT, DIAGONAL, CALIBRATED = "default", "diagonal", "calibrated"
LINEAR, LAST, DRAWN = "linear", "last layer only", "30 draws"
METHODS = (DEFAULT, DIAGONAL, CALIBRATED, LINEAR, LAST, DRAWN)
BATCH, _DRAWS, _LOGITS, _CHECKED = 10, 30, 100, 10


def measure(case: Case, settings: Settings, key: jax.Array) -> Iterator[Row]:
    """Yields a row for each posterior and method."""
    f, sets = case.f, case.sets
    keys = jax.random.split(key, 5)
    x = sets.test[0][: settings.held_out]
    uncompiled = {
        DEFAULT: moments(f),
        DIAGONAL: moments(f, method="diagonal"),
        LINEAR: moments(f, method="linear"),
    }
    passes: dict[str, Any] = {method: jax.jit(g) for method, g in uncompiled.items()}
    passes |= {CALIBRATED: jax.jit(moments(f)), LAST: passes[DIAGONAL]}
    taken = uncompiled[DEFAULT].explain(next(iter(case.posteriors.values())), x[:BATCH]).method
    asked = {DEFAULT, *(settings.methods or passes)}
    passes = {method: g for method, g in passes.items() if method in asked}
    first: dict[str, Row] = {}
    for noise, posterior in case.posteriors.items():
        outputs = np.asarray(predict(keys[0], f, posterior, x, samples=settings.oracle), np.float64)
        calibrate = partial(calibrate_moments, samples=settings.samples, progress=False)
        seen = sets.train[0][: settings.calibration]
        posteriors = dict.fromkeys(passes, posterior) | {
            LAST: last_layer_only(f, posterior, x[:BATCH])
        }
        seconds = {}
        if CALIBRATED in passes:
            measured = partial(calibrate, keys[1], f, posterior, seen)
            posteriors[CALIBRATED], seconds[CALIBRATED] = _spent(measured)
        rows: list[Row] = []
        for method, g in list(passes.items()):
            if method not in first:  # later posteriors run what is compiled, and warn no more
                try:
                    first[method] = _first_call(g, posteriors[method], x[:BATCH])
                except MomentsError:
                    # Refused, as all correlations of a picture's results are: it has no row.
                    del passes[method]
                    continue
            rows.append(
                {"method": method, **first[method], **_held(g, posteriors[method], x, outputs)}
            )
        check = moments_check(keys[2], f, posterior, x[:_CHECKED])
        rows[0] |= {"agrees": check.agrees, "advice": check.advice,
                    "checked": check.ratio and check.ratio.median,
                    "taken": taken, "results": outputs[0, 0].size}  # fmt: skip
        for method, spent in seconds.items():
            rows[list(passes).index(method)]["calibration"] = spent
        rows.append({"method": DRAWN, **of_samples(_DRAWS, outputs)})
        costs: dict[str, Row] = {}
        if noise == SVI and settings.rounds:
            draws = _logits(case, passes, posteriors, DRAWN, jax.random.key(0))
            calls = {
                method: partial(g, posteriors[method], x[:BATCH]) for method, g in passes.items()
            }
            calls[DRAWN] = partial(draws, x[:BATCH])
            costs = costs_of(f, posterior, x[:BATCH], calls, settings.rounds)
        for row in rows:
            if noise == SVI:
                logits = _logits(case, passes, posteriors, row["method"], keys[3])
                row |= quality(logits, sets, settings.asked, BATCH)
            yield {"noise": noise, **row, **_beside(costs.get(row["method"], {}), outputs)}


def costs_of(
    f: Callable[..., Any],
    posterior: Any,
    x: Any,
    calls: Mapping[str, Callable[[], Any]],
    rounds: int,
) -> dict[str, Row]:
    """Processor times of calls over that of the network with its mean parameters, under XLA."""
    means = jax.tree.map(lambda v: v.mean if is_gaussian(v) else v, posterior, is_leaf=is_gaussian)
    alone = metered(partial(jax.jit(f), means, x), time.process_time)
    meters = {name: metered(call, time.process_time) for name, call in calls.items()}
    times = measure_rounds({**meters, "alone": alone}, rounds)
    return {name: {"cost": ratio(times[name], times["alone"])} for name in calls}


def _held(g: Callable[..., Any], given: Any, x: Any, outputs: Outputs) -> Row:
    """Holds a pass against the oracle."""
    parts = [g(given, x[i : i + BATCH]) for i in range(0, len(x), BATCH)]
    mean, var = (
        np.concatenate([np.asarray(getattr(y, name), np.float64) for y in parts])
        for name in ("mean", "var")
    )
    return {**compared(var, outputs, 0), "mean_error": mean_error(mean, outputs)}


def last_layer_only(f: Callable[..., Any], posterior: Any, x: Any) -> Any:
    """The posterior with everything but the last linear layer's parameters at the means."""
    means = jax.tree.map(lambda v: v.mean if is_gaussian(v) else v, posterior, is_leaf=is_gaussian)
    layers = [one.site for one in trace(f, means, x).layers if one.kind == "linear"]

    def kept(path: Any, leaf: Any) -> Any:
        here = jax.tree_util.keystr(path, simple=True, separator="/")
        last = here.rpartition("/")[0] == layers[-1].partition("#")[0]
        return leaf if last or not is_gaussian(leaf) else leaf.mean

    return jax.tree_util.tree_map_with_path(kept, posterior, is_leaf=is_gaussian)


def _spent(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a function returns, and its seconds of processor time."""
    start = time.process_time()
    outputs = jax.block_until_ready(call())
    return outputs, time.process_time() - start


def _first_call(g: Callable[..., Any], *args: Any) -> Row:
    """Seconds of processor time of a first call beyond another one's, and what it warns of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _, first = _spent(partial(g, *args))
    _, again = _spent(partial(g, *args))
    return {"compiled": first - again, "warned": " ".join(str(one.message) for one in said)}


def _logits(
    case: Case, passes: Mapping[str, Any], given: Mapping[str, Any], method: str, key: jax.Array
) -> Callable[[Any], Any]:
    """How a method draws logits."""
    if method == DRAWN:
        return lambda x: predict(key, case.f, given[DEFAULT], x, samples=_DRAWS)
    return lambda x: sample_logits(key, passes[method](given[method], x), _LOGITS)


def _beside(costs: Row, outputs: Outputs) -> Row:
    """The costs of a method, and the error of as many draws as it is the price of."""
    if not costs:
        return {}
    n = min(max(2, round(costs["cost"])), len(outputs) // 2)
    return {**costs, "error_of_draws": of_samples(n, outputs)["error"]}
