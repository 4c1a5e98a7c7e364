"""Variance-aware noisy training (VANT): every image sees a noise level of its own.

```python
import jax
import optax

from jaxeff.hardening import VariableLevel, variance_aware
from jaxeff.nn import small_classifier
from jaxeff.noise import Additive, noisy
from jaxeff.training import cross_entropy, fit

f, params, data = small_classifier()

def noise_per_image(levels):                               # [batch]
    spec = {"*": Additive(levels, along="sample")}
    return cross_entropy(noisy(f, spec), keyed=True)

loss = variance_aware(noise_per_image)(VariableLevel(sigma=1.0, theta=0.4))
fit(jax.random.key(0), loss, params, data, optimizer=optax.adam(1e-2), epochs=2, batch_size=32)
```

A level is drawn per image and shared by all layers, afresh in every step. It is published in two
forms: the text draws it from N(alpha sigma, theta), the authors' code takes
alpha sigma + theta |N(0, 1)|, whose mean is larger by 0.8 theta. The code's is the default, since
the published figures are its.

```python
from jaxeff.hardening import vant

levels = vant(jax.random.key(0), sigma=1.0, theta=0.4, batch=1000)
assert levels.min() > 0.45                                 # alpha sigma, of the half-normal form
assert abs(levels.mean() - (0.45 + 0.8 * 0.4)) < 0.03
```

Sharp edge: a normal draw may be negative. As a standard deviation of symmetric noise -s is the
same as s, so its absolute value is returned.

Source: Wang et al., "Variance-Aware Noisy Training", arXiv:2503.16183.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import (
    check_choice,
    check_number,
    function_of_form,
    non_negative,
    static_integer,
    validate,
)
from jaxeff.training import Loss, count_examples

ALPHA = 0.45
"""The published calibration of the level's distribution to the hardware's noise."""
THETA_PER_SIGMA = 0.4
"""The published rule of thumb: theta is about this times sigma."""
FORMS = ("half_normal", "normal")


class VariableLevel(NamedTuple):
    """Distribution of the level: the setting of `variance_aware`, a pytree that can be swept.

    Attributes:
        sigma: The hardware's nominal noise level.
        theta: Spread of the levels, in the unit of `sigma`; with 0 and `alpha` 1 it is plain noisy
            training.
        alpha: Calibrates the centre of the distribution, without unit.
    """

    sigma: Float[Array, ""] | float
    theta: Float[Array, ""] | float
    alpha: Float[Array, ""] | float = ALPHA


@validate(sigma=non_negative, theta=non_negative, batch=static_integer(), alpha=non_negative)
def vant(
    key: jax.Array,
    sigma: Float[Array, ""] | float,
    theta: Float[Array, ""] | float,
    batch: int,
    *,
    alpha: Float[Array, ""] | float = ALPHA,
    form: str = "half_normal",
) -> Float[Array, " batch"]:
    """Draws a noise level for each image of a batch.

    Args:
        key: Random key.
        sigma: The hardware's nominal noise level.
        theta: Spread of the levels.
        batch: Number of images.
        alpha: Calibrates the centre of the distribution.
        form: "half_normal" for `alpha sigma + theta |N(0, 1)|`; "normal" for the absolute value of
            `N(alpha sigma, theta)`, theta being a standard deviation.

    Returns:
        Standard deviations, none negative.

    Raises:
        ValueError: A number is negative, NaN or infinite, or there is no such form.
    """
    check_choice("form", form, FORMS)
    for name, value in (("sigma", sigma), ("theta", theta), ("alpha", alpha)):
        check_number(name, value, low=0)
    normal = jax.random.normal(key, (batch,))
    if form == "half_normal":
        return alpha * sigma + theta * jnp.abs(normal)
    # Symmetric noise of a negative level is that of its absolute value.
    return jnp.abs(alpha * sigma + theta * normal)


@validate(loss_at=function_of_form("loss_at(sigma)"), ramp_steps=static_integer(0))
def variance_aware(
    loss_at: Callable[[Float[Array, " batch"]], Loss],
    *,
    form: str = "half_normal",
    ramp_steps: int = 0,
) -> Callable[[VariableLevel], Loss]:
    """Makes noisy training with a level per image.

    Args:
        loss_at: The loss of a batch whose images have these noise levels.
        form: The distribution of levels, see `vant`.
        ramp_steps: Updates of plain noisy training before VANT, during which the level of all
            images grows evenly from 0 to `sigma`; the source trains ResNets so.

    Returns:
        The loss of a `VariableLevel`.
    """
    check_choice("form", form, FORMS)

    def at(setting: VariableLevel) -> Loss:
        def loss(key: Any, params: Any, state: Any, batch: Any, step: Any) -> Any:
            # Levels have a key of their own: drawn with the noise's, they would be correlated with
            # it.
            level_key, key = jax.random.split(key)
            sigma, theta, alpha = setting
            size = count_examples(batch)
            levels = vant(level_key, sigma, theta, size, alpha=alpha, form=form)
            if ramp_steps:
                # Selected, not branched: the step is traced, and both phases are one program.
                levels = jnp.where(step < ramp_steps, sigma * step / ramp_steps, levels)
            return loss_at(levels)(key, params, state, batch, step)

        return loss

    return at
