"""`assumptions(f, params, x)`: where moments assume independence, and the error that it causes.

```python
import jax

import jaxeff
from jaxeff.moment_propagation import assumptions
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
twice = lambda p, x: f(p, x) * f(p, x)[:, ::-1]              # both factors share a posterior
print(assumptions(twice, posterior, x[:10]))                 # the places
print(assumptions(twice, posterior, x[:10], key=jax.random.key(0)))  # and what each costs
```

The second form runs the function on samples and compares the rule of each place with them. The rule
gets the sampled moments of its inputs, so that errors of one place don't count for the next.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from jaxeff.core import input_batch, instance_of, static_integer, validate
from jaxeff.moment_propagation._moment_pass import Propagation
from jaxeff.moment_propagation._monte_carlo import ratios, sampled_moments
from jaxeff.moment_propagation._reading import read
from jaxeff.moment_propagation.calibration import uncalibrated
from jaxeff.moment_propagation.dependence import Assumption, Assumptions, Ratio
from jaxeff.moment_propagation.rules import Rule
from jaxeff.moment_propagation.values import Gaussian, is_random, to_variance
from jaxeff.program import Layer
from jaxeff.program.ir import Value

Place = tuple[str, str]
"""Site and kind of a layer."""


@validate(samples=static_integer(2), rules=instance_of(Mapping), args=input_batch)
def assumptions(
    f: Callable[..., Any],
    *args: Any,
    key: PRNGKeyArray | None = None,
    samples: int = 1000,
    chunk: int = 50,
    rules: Mapping[Any, Rule] | None = None,
    shared: bool = True,
    **kwargs: Any,
) -> Assumptions:
    """Lists the places where `moments(f)(*args, **kwargs)` assumes independence.

    Args:
        f: A pure function `f(params, *args)`.
        *args: The arguments, any leaf of which may be a `Gaussian`.
        key: A PRNG key, to estimate how far the variance of each place is off; nothing is estimated
            without one.
        samples: Number of samples to estimate from: an entry's ratio has a standard error of about
            sqrt(2 / samples).
        chunk: Number of samples that run at once.
        rules: Same as for `moments`.
        shared: Same as for `moments`: poolings that what a kernel shares is followed to are no
            places. False lists them, too.
        **kwargs: Further arguments.

    Returns:
        The places in order of execution; empty where the moments are exact but for the form of
        distributions. It prints as a list.

    Raises:
        ValueError: Fewer than 2 samples.
        MomentsError: As `moments`.
    """
    if samples < 2:
        raise ValueError(f"assumptions: samples is {samples}; 2 or more are needed.")
    places = places_of(f, args, kwargs, rules or {}, shared)
    if key is None or not places:
        return places
    errors, _ = site_ratios(key, f, args, kwargs, rules or {}, samples, chunk, places)
    return with_ratios(places, errors)


def places_of(
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rules: Mapping[Any, Rule],
    shared: bool = True,
) -> Assumptions:
    """Lists the places, without how far each is off."""
    found: list[Assumption] = []
    propagation = Propagation(rules, "variance", found.append, shared=shared)
    # The places depend on the program and on shapes alone: nothing is computed to find them.
    jax.eval_shape(functools.partial(propagation.run, f), tuple(args), dict(kwargs))
    return Assumptions.merged(found)


def with_ratios(places: Assumptions, errors: Mapping[Place, Ratio | None]) -> Assumptions:
    """Adds to assumptions how far the variances of their layers are off."""
    return Assumptions(replace(one, ratio=errors.get(_place(one))) for one in places)


def _place(one: Assumption | Layer) -> Place:
    return one.site, one.kind


def site_ratios(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    rules: Mapping[Any, Rule],
    samples: int,
    chunk: int,
    places: Assumptions,
) -> tuple[dict[Place, Ratio | None], list[Gaussian | None]]:
    """Divides the variances of each place's rule, given sampled inputs, by sampled ones.

    Returns:
        The ratios by site and kind, and the sampled moments of the function's results; None for
        results that aren't random.
    """
    propagation = Propagation(rules, "variance", lambda one: None)
    plain_args, _ = uncalibrated(args)
    wanted = {_place(one) for one in places}

    @jax.jit
    def run(key: PRNGKeyArray, args: Any, kwargs: Any) -> tuple[dict[str, Any], list[Any]]:
        program, values, _ = read(f, args, kwargs)
        prepared = propagation.prepare(program, values)
        layers = [
            layer
            for layer in prepared.layers
            if _place(layer) in wanted and layer.kind != "control flow" and layer.nodes
        ]
        # Sums over draws of what no place reads or makes would be most of the loop's work.
        ends = {v for v in program.outputs if isinstance(v, Value)}
        ends.update(v for layer in layers for v in (*layer.inputs, layer.outputs[0]))
        sampled = sampled_moments(key, program, values, samples, chunk, ends)
        results = [sampled.get(v) if isinstance(v, Value) else None for v in program.outputs]
        known = dict(zip(program.inputs, values, strict=True))
        found = {}
        for number, layer in enumerate(layers):
            result = layer.outputs[0]
            if result not in sampled:
                continue
            # Sampled moments of the inputs, not propagated ones: what is measured is each place's
            # own error.
            inputs = [sampled.get(v, known.get(v)) for v in layer.inputs]
            if any(v is None for v in inputs):
                continue  # made from constants alone, or discrete
            outputs = propagation.layer({}, layer, None, *inputs)
            if is_random(outputs[0]):
                measured_at[str(number)] = _place(layer)
                found[str(number)] = ratios(to_variance(outputs[0]), sampled[result])
        return found, results

    measured_at: dict[str, Place] = {}
    measured, results = run(key, plain_args, dict(kwargs))
    error = float(np.sqrt(2 / samples))
    return {measured_at[n]: summary_of(np.asarray(r), error) for n, r in measured.items()}, results


def summary_of(ratio: np.ndarray, error: float) -> Ratio | None:
    """Summarizes ratios of entries, or returns None if no entry varies."""
    # Entries that never vary (a dead unit) have no ratio.
    values = ratio[np.isfinite(ratio)]
    if not values.size:
        return None
    low, median, high = (float(q) for q in np.quantile(values, (0.05, 0.5, 0.95)))
    return Ratio(median, low, high, error)


__all__ = ["Assumption", "Assumptions", "Ratio", "assumptions"]
