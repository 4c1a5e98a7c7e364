"""Temperature scaling: one number that makes a classifier as sure as it should be.

```python
import jaxeff
from jaxeff.nn import small_classifier
from jaxeff.uncertainty import temperature_scale, tempered

f, params, (x, y) = small_classifier()
y = f(params, x).argmax(-1).at[::4].set(0)           # a network that is mostly right
temperature = temperature_scale(f(params, x), y)     # on examples that were held out
g = tempered(f, temperature)                         # or of jaxeff.moments(f)
```

Guo et al. 2017 (arXiv 1706.04599), section 4.2. The most probable class stays what it is.

Sharp edges:
    Labels that the logits separate without an error have no best temperature; it stops at
    `SMALLEST`, labels that are worse than chance at `LARGEST`, and where all classes have the same
    logit it is 1. A `CalibrationWarning` says so; not inside of `jit`, where values are unknown.
    Logits of minus infinity, as of classes that are masked, stay out of it.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxeff import core
from jaxeff.moment_propagation import Gaussian, JointGaussian, is_gaussian, is_joint_gaussian
from jaxeff.uncertainty._gaussian_logits import probit_logits, real_outputs

SMALLEST, LARGEST = 1e-3, 1e3
STEPS = 60
"""Halvings of the range of the logarithm: more than float64 can tell apart."""
GRID = 61
"""Temperatures that are compared first, ten to a decade."""


class CalibrationWarning(UserWarning):
    """Held-out examples don't tell what was to be found: the message says why, and the way out."""


@core.register_setting
class Temperature(core.Setting):
    """What logits are divided by; a leaf, so that it can be swept or learnt.

    Attributes:
        value: Above one makes predictions less sure, below one surer.
    """

    value: core.Positive = 1.0


@core.validate(logits=real_outputs)
def temperature_scale(
    logits: Float[Array, "batch classes"] | Gaussian, labels: Int[Array, " batch"]
) -> Temperature:
    """Finds the temperature of the smallest negative log-likelihood; jits and vmaps.

    Args:
        logits: Logits of held-out examples, or Gaussian ones, whose likelihood is the probit
            approximation's.
        labels: Their classes.

    Returns:
        The temperature; NaN inside of `jit` where the likelihood is no number.

    Raises:
        TypeError: The logits are no array of two axes or Gaussian, or the labels no integers.
        ValueError: A label is out of range, there are no examples, or the likelihood of some is no
            number: logits are NaN or infinite, or minus infinity at the label.

    Warns:
        CalibrationWarning: No temperature is the best one, or it lies outside the range.
    """
    is_random = is_gaussian(logits) or is_joint_gaussian(logits)
    mean: Any = logits.mean if is_random else logits
    if np.ndim(mean) != 2 or not jnp.issubdtype(jnp.result_type(mean), jnp.floating):
        raise TypeError("temperature_scale: logits must be floating-point [batch, classes]")
    if not len(mean):
        raise ValueError("temperature_scale: there are no examples")
    core.check_labels("temperature_scale: labels", labels, mean.shape[-1], mean.shape[:-1])
    rows, dtype = jnp.asarray(labels)[:, None], jnp.result_type(mean)
    mean = core.widened(mean)  # in 16 bits slopes of many examples round off
    wide = mean.dtype
    # What is masked weighs nothing at any temperature, but its derivative would be 0 times
    # infinity: it is taken out before anything is computed of it.
    there = ~jnp.isneginf(mean)
    kept: Any = jnp.where(there, mean, 0)
    if is_random:
        kept = Gaussian(kept, jnp.where(there, core.widened(logits.var), 0))

    def nll(log_temperature: Array) -> Array:
        scaled = probit_logits(_divided(kept, jnp.exp(log_temperature)))
        log_probs = jax.nn.log_softmax(scaled, where=there, axis=-1)
        return -jnp.take_along_axis(log_probs, rows, axis=-1)[:, 0]

    slope = jax.grad(lambda log_temperature: nll(log_temperature).mean())

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        falling = slope(middle) < 0
        return jnp.where(falling, middle, low), jnp.where(falling, high, middle)

    # Of logits the likelihood is convex in 1 / T. Of Gaussian ones it flattens where variances are
    # far above one, so a grid finds the basin, and the sign of the slope its bottom.
    grid = jnp.linspace(jnp.log(SMALLEST), jnp.log(LARGEST), GRID, dtype=wide)
    losses = jax.lax.map(lambda log_temperature: nll(log_temperature).mean(), grid)
    best, least = losses.argmin(), losses.min()
    ends = grid[jnp.maximum(best - 1, 0)], grid[jnp.minimum(best + 1, GRID - 1)]
    low, high = jax.lax.fori_loop(0, STEPS, halve, ends)
    value = jnp.exp((low + high) / 2)
    is_smallest = (slope(grid[0]) >= 0) & (losses[0] <= least)
    is_largest = (slope(grid[-1]) <= 0) & (losses[-1] <= least)
    value = jnp.where(is_smallest, SMALLEST, jnp.where(is_largest, LARGEST, value))
    largest, smallest = (jnp.where(there, mean, end) for end in (-jnp.inf, jnp.inf))
    is_constant = (largest.max(-1) <= smallest.min(-1)).all()
    unknown = ~jnp.isfinite(nll(jnp.zeros((), wide)))
    value = jnp.where(unknown.any(), jnp.nan, jnp.where(is_constant, 1, value)).astype(dtype)
    if core.is_concrete(value):
        _say(int(unknown.sum()), bool(is_constant), bool(is_smallest), bool(is_largest))
    return Temperature(value)


def _say(unknown: int, is_constant: bool, is_smallest: bool, is_largest: bool) -> None:
    """Refuses or warns of what has no best temperature."""
    if unknown:
        raise ValueError(
            f"temperature_scale: the likelihood of {unknown} examples is no number: their logits "
            "hold NaN or infinity, or minus infinity at the label; leave them out, or mend them"
        )
    way_out = "; give more held-out examples, or take Temperature(1.0)"
    if is_constant:
        text = "all classes have the same logit, so that every temperature is as good; it is 1"
    elif is_smallest:
        text = f"the labels are those of the largest logits, so that it stopped at {SMALLEST:g}"
        text += way_out
    elif is_largest:
        text = f"the logits say less than nothing of the labels, so that it stopped at {LARGEST:g}"
        text += "; see that labels and logits are of the same examples"
    else:
        return
    warnings.warn(f"temperature_scale: {text}.", CalibrationWarning, stacklevel=4)


@core.validate(f=core.function_of_form("f(*args)"), temperature=core.instance_of(Temperature))
def tempered(f: Callable[..., Any], temperature: Temperature) -> Callable[..., Any]:
    """Divides a function's logits by a temperature.

    Args:
        f: A pure function such as ``f(params, x)`` or ``jaxeff.moments(f)``.
        temperature: What `temperature_scale` found.

    Returns:
        A function of the same arguments: logits, or Gaussian ones whose variance is divided by the
        square.
    """

    def g(*args: Any, **kwargs: Any) -> Any:
        return _divided(f(*args, **kwargs), temperature.value)

    return g


def _divided(logits: Any, temperature: Any) -> Any:
    if is_gaussian(logits):
        return Gaussian(logits.mean / temperature, logits.var / temperature**2)
    if is_joint_gaussian(logits):
        return JointGaussian(logits.mean / temperature, logits.cov / temperature**2)
    return logits / temperature
