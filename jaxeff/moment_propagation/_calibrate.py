"""`calibrate_moments`: corrects variances by a factor per site and channel, measured once.

```python
import jax

import jaxeff
from jaxeff.moment_propagation import calibrate_moments
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
calibrated = calibrate_moments(jax.random.key(0), f, posterior, x[:100])
logits = jaxeff.moments(f)(calibrated, x)
```

The diagonal covariance forgets what entries share (a kernel's noise over positions, noise at the
input, a residual stream), and variances are off by factors that depend on the network far more than
on the input. So the function is run on samples once, and for every site that combines entries the
ratio of the sampled variance to the rule's, given already calibrated inputs, is kept: one factor
per channel. Klein's thesis, section 8.3, scales the variance of a whole network by one factor
chosen by hand (its calibration factor, 0.3 and 0.4); here factors are measured.

Such factors are averages over inputs, and on other inputs what is left is how much the ratio varies
between them. So a second form is tried as well: the variance of every result as a power of the
propagated one, log E[s^2] = a_c + p log V, in the place of factors inside or after them. It is
taken where it is better on inputs that it wasn't fitted to (`form="best"`).

Sharp edges
- Factors were measured on a batch; inputs of another kind may have others. `repr` states the median
  error on the half of the inputs that factors weren't measured on.
- Factors of positions (scores of attention that wasn't recognised) have their mean in common where
  a sequence is of another length.
- They belong to the posterior: another one, or another scale of noise at the input, has others.
- Means are left as they are. Covariances between results stay unknown.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxeff.core import (
    input_batch,
    instance_of,
    progress_bar,
    static_integer,
    validate,
)
from jaxeff.moment_propagation._covariance import correlated
from jaxeff.moment_propagation._linear import check_method, first_order_pass
from jaxeff.moment_propagation._moment_pass import Propagation, promote
from jaxeff.moment_propagation._monte_carlo import DrawSums, Sampling, draw_keys, random_values
from jaxeff.moment_propagation._reading import read
from jaxeff.moment_propagation.calibration import (
    FORMS,
    Calibrated,
    FactorPass,
    choose,
    examples_of,
    is_scaled,
    may_scale,
    result_name,
)
from jaxeff.moment_propagation.rules import Rule
from jaxeff.moment_propagation.values import Gaussian, is_gaussian, is_random, to_variance
from jaxeff.program import Layer, Program, evaluate
from jaxeff.program.ir import Value

# Calls that the draws are spread over: the progress bar moves as often.
_CALLS = 20


@validate(
    posterior=input_batch,
    args=input_batch,
    samples=static_integer(2),
    rules=instance_of(Mapping),
)
def calibrate_moments(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    posterior: Any,
    *args: Any,
    samples: int = 200,
    chunk: int = 1,
    rules: Mapping[Any, Rule] | None = None,
    correlations: bool = False,
    method: str = "layers",
    form: str = "best",
    progress: bool | None = None,
    **kwargs: Any,
) -> Calibrated:
    """Measures what the variances of `moments(f)` have to be multiplied by, per site and channel.

    Args:
        key: A PRNG key.
        f: A pure function `f(params, *args)`.
        posterior: A pytree in the place of `params`; its `Gaussian` leaves are random.
        *args: Further arguments: a batch of inputs like those to come, 64 or so; they may hold
            `Gaussian` leaves too.
        samples: Number of samples to draw; a channel's factor has a relative standard error of at
            most about sqrt(2 / samples), less where it is averaged over independent entries.
        chunk: Number of samples that run at once; memory is this many times that of `f`.
        rules: Same as for `moments`.
        correlations: Whether to measure factors for `moments(f, correlations=True)`, one per entry
            of a result's last axis, instead.
        method: Method of `moments`: "linear" measures factors for `moments(f, method="linear")`,
            one per entry of a result's last axis, instead.
        form: "static": a factor per site and channel. "level": the variance of a result is a
            power of the propagated one, times a factor of its channel. "static and level": the
            second after the first. "best": the one of least error on the half of the inputs that
            it wasn't measured on, and "static" unless another is surely better, or there are fewer
            than 8 inputs. Static with `correlations` and the linear method.
        progress: Whether to show a bar of draws; see `jaxeff.core`.
        **kwargs: Further arguments.

    Returns:
        The posterior with its factors, for `moments(f)`, `deploy` and files.

    Raises:
        ValueError: Fewer than 2 samples, an unknown method or form, or nothing in the arguments is
            random.
        MomentsError: As `moments`.
    """
    check_method("calibrate_moments", method)
    if isinstance(posterior, Calibrated):
        posterior = posterior.posterior
    _check(samples, form, (posterior, *args, *kwargs.values()))
    propagation = Propagation(rules or {}, "variance", lambda one: None)
    first_order = first_order_pass(propagation, method)
    given = (posterior, *args), dict(kwargs)
    program, values, _ = read(f, *given)
    of_results = correlations or method == "linear"
    sampling = Sampling(program, _measured(propagation, program, values, of_results), chunk)
    keys = draw_keys(key, samples, chunk)
    examples = 1 if of_results else examples_of(program)

    def measure(
        sums: DrawSums, rows: Array, scale: Array, values: Sequence[Any], args: Any, kwargs: Any
    ) -> FactorPass:
        sampled = sampling.moments(sums, keys.size)
        found = FactorPass({}, {}, {})
        if of_results:
            # Those variances are of results alone, so there is one factor per result and none
            # inside.
            full = correlated(first_order, f, args, kwargs)
            results = jax.tree.leaves(full, is_leaf=is_gaussian)
            for i, (atom, ours) in enumerate(zip(program.outputs, results, strict=True)):
                if isinstance(atom, Value) and atom in sampled:
                    site = result_name(first_order.expected_slopes, i)
                    factor = _factor(ours, sampled[atom], rows, samples)
                    found.factors[site], found.errors[site] = factor
            return found

        def rule(layer: Layer, layer_key: Any, *operands: Any) -> Any:
            outputs = propagation.layer({}, layer, layer_key, *operands)
            result = layer.outputs[0]
            if result not in sampled or not is_scaled(layer, outputs[0]):
                return outputs
            ours = to_variance(outputs[0])
            factor, error = _factor(ours, sampled[result], rows, samples)
            # The calibrated variance goes on, so that a later factor corrects what its own layer
            # adds and not what has been corrected before.
            found.factors[layer.site], found.errors[layer.site] = factor, error
            return [Gaussian(ours.mean, ours.var * factor**scale), *outputs[1:]]

        outputs = evaluate(program, rule, None, values, promote, propagation.prepare)
        for i, (atom, ours) in enumerate(zip(program.outputs, outputs, strict=True)):
            if isinstance(atom, Value) and atom in sampled and is_random(ours):
                found.results[i] = to_variance(ours), sampled[atom]
        return found

    # Before any draw: what has no rule is refused in seconds, not after minutes.
    like = jax.eval_shape(sampling.start, values)
    rows, scale = np.ones(examples, np.float32), np.float32(1)
    finish = jax.jit(measure).lower(like, rows, scale, values, *given).compile()
    sums = _sum_of_draws(sampling, values, keys, progress)
    chosen = choose(
        "static" if of_results else form,
        examples,
        lambda rows, scale: finish(sums, rows, np.float32(scale), values, *given),
        samples,
    )
    stated = tuple((site, float(np.median(np.asarray(e)))) for site, e in chosen.errors.items())
    return Calibrated(posterior, chosen.factors, stated, chosen.unseen)


def _check(samples: int, form: str, arguments: Any) -> None:
    """Checks what `validate` can't: numbers, names, and that something is random."""
    if samples < 2:
        raise ValueError(f"calibrate_moments: samples is {samples}; 2 or more are needed.")
    if form not in FORMS:
        raise ValueError(f"calibrate_moments: form {form!r} is unknown; choose one of {FORMS}.")
    if not any(map(is_gaussian, jax.tree.leaves(arguments, is_leaf=is_gaussian))):
        raise ValueError(
            "calibrate_moments: nothing is random; give a posterior with Gaussian leaves, as "
            "svi(...).posterior, or a Gaussian input."
        )


def _sum_of_draws(
    sampling: Sampling, values: Sequence[Any], keys: PRNGKeyArray, progress: bool | None
) -> DrawSums:
    """Sums all draws, in calls that a progress bar counts."""
    sums = jax.jit(sampling.start)(values)
    add = jax.jit(sampling.add, donate_argnums=0)
    stops = np.linspace(0, len(keys), min(len(keys), _CALLS) + 1).astype(int)
    with progress_bar(progress, "draw", keys.size, 0) as advance:
        for first, last in itertools.pairwise(stops.tolist()):
            sums = jax.block_until_ready(add(sums, values, keys, first, last))
            advance((last - first) * sampling.chunk, "")
    return sums


def _measured(
    propagation: Propagation, program: Program, values: Sequence[Any], of_results: bool
) -> list[Value]:
    """Finds the values whose sampled variance a factor is made of.

    Sums over all values of a network would take longer than the network itself.
    """
    if of_results:
        ends = {v for v in program.outputs if isinstance(v, Value)}
    else:
        prepared = propagation.prepare(program, values)
        ends = {layer.outputs[0] for layer in prepared.layers if may_scale(layer)}
        ends |= {v for v in program.outputs if isinstance(v, Value)}
    return [v for v in random_values(program, values) if v in ends]


def _factor(ours: Gaussian, sampled: Gaussian, rows: Array, samples: int) -> tuple[Array, Array]:
    """Computes the factor of each channel, and its relative standard error.

    The factor is the geometric mean of the entries' ratios, so that no entry dominates. Its
    error from sampling is at most that of one entry, for entries of a channel share their samples.
    Channels are drawn towards their common mean by as much as their spread is explained by that
    error (James and Stein 1961).
    """
    # An entry without variance (masked, dead) has no ratio and is left out.
    known = (ours.var > 0) & (sampled.var > 0)
    ratio = jnp.where(known, sampled.var, 1) / jnp.where(known, ours.var, 1)
    axes = tuple(range(ours.ndim - 1))
    if axes and ours.shape[0] % rows.size == 0:
        weights = jnp.repeat(rows, ours.shape[0] // rows.size) > 0
        known &= weights.reshape(-1, *(1,) * (ours.ndim - 1))
    logs = jnp.sum(jnp.where(known, jnp.log(ratio), 0), axes) / jnp.maximum(jnp.sum(known, axes), 1)
    # The variance of the logarithm of a sample variance, for normal results. Its share in the
    # spread of the channels is how far they are shrunk to their common mean.
    noise = 2 / samples
    spread = jnp.maximum(jnp.var(logs) - noise, 0)
    kept = spread / (spread + noise)
    common = jnp.mean(logs)
    error = jnp.sqrt(noise * (kept + (1 - kept) / max(logs.size, 1)))
    return jnp.exp(common + kept * (logs - common)), jnp.full(logs.shape, error)
