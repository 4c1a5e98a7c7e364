"""Temperature scaling: one number that makes a classifier as sure as it should be.

```python
import jaxeff
from jaxeff.nn import small_classifier
from jaxeff.uncertainty import temperature_scale, tempered

f, params, (x, y) = small_classifier()
temperature = temperature_scale(f(params, x), y)     # on examples that were held out
g = tempered(f, temperature)                         # or of jaxeff.moments(f)
```

Guo et al. 2017 (arXiv 1706.04599), section 4.2. The most probable class stays what it is.

Sharp edge: labels that the logits separate without an error have no best temperature; it stops at
`SMALLEST`, labels that are worse than chance at `LARGEST`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxeff.core import (
    Positive,
    Setting,
    check_labels,
    function_of_form,
    instance_of,
    register_setting,
    validate,
)
from jaxeff.moment_propagation import Gaussian, JointGaussian, is_gaussian, is_joint_gaussian
from jaxeff.uncertainty._gaussian_logits import probit_logits, real_outputs

SMALLEST, LARGEST = 1e-3, 1e3
STEPS = 60
"""Halvings of the range of the logarithm: more than float64 can tell apart."""


@register_setting
@dataclass(frozen=True)
class Temperature(Setting):
    """What logits are divided by; a leaf, so that it can be swept or learnt.

    Attributes:
        value: Above one makes predictions less sure, below one surer.
    """

    value: Positive = 1.0


@validate(logits=real_outputs)
def temperature_scale(
    logits: Float[Array, "batch classes"] | Gaussian, labels: Int[Array, " batch"]
) -> Temperature:
    """Finds the temperature of the smallest negative log-likelihood; jits and vmaps.

    Args:
        logits: Logits of held-out examples, or Gaussian ones, whose likelihood is the probit
            approximation's.
        labels: Their classes.

    Raises:
        TypeError: The logits are no array of two axes or Gaussian, or the labels no integers.
        ValueError: A label is out of range, or there are no examples.
    """
    mean: Any = logits.mean if is_gaussian(logits) or is_joint_gaussian(logits) else logits
    if np.ndim(mean) != 2 or not jnp.issubdtype(jnp.result_type(mean), jnp.floating):
        raise TypeError("temperature_scale: logits must be floating-point [batch, classes]")
    if not len(mean):
        raise ValueError("temperature_scale: there are no examples")
    check_labels("temperature_scale: labels", labels, mean.shape[-1], mean.shape[:-1])
    rows = jnp.asarray(labels)[:, None]

    def nll(log_temperature: Array) -> Array:
        scaled = probit_logits(_divided(logits, jnp.exp(log_temperature)))
        return -jnp.take_along_axis(jax.nn.log_softmax(scaled), rows, axis=-1).mean()

    slope = jax.grad(nll)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        # The likelihood is convex in 1 / T, so its slope changes sign once.
        falling = slope(middle) < 0
        return jnp.where(falling, middle, low), jnp.where(falling, high, middle)

    ends = (jnp.log(jnp.asarray(t, mean.dtype)) for t in (SMALLEST, LARGEST))
    low, high = jax.lax.fori_loop(0, STEPS, halve, tuple(ends))
    return Temperature(jnp.exp((low + high) / 2))


@validate(f=function_of_form("f(*args)"), temperature=instance_of(Temperature))
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
