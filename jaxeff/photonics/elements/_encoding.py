"""`noise_for`: the noise level L that gives an intensity the deviation that is asked for.

```python
import jax.numpy as jnp

from jaxeff.photonics import ChaoticLight, noise_for, sigma_bounds

light = ChaoticLight(slots=8, electronic=0.01)
sigma_bounds(jnp.array(2.0), light)                  # 0.223 and 0.437
noise_for(0.3, jnp.array(2.0), light)                # 0.360
```
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.core import (
    check_number,
    instance_of,
    is_concrete,
    real_array,
    validate,
    with_leading_axes,
)
from jaxeff.photonics.elements._chaotic_light import ChaoticLight
from jaxeff.photonics.light import sigma_bounds

SLACK = 1e-5
"""Relative tolerance of a deviation at its bounds, for rounding."""


@validate(
    sigma=real_array(nan=True),
    light=instance_of(ChaoticLight),
    intensity=real_array(nan=True, empty=True),
)
def noise_for(
    sigma: Float[Array, "..."] | float, intensity: Float[Array, "*shape"], light: ChaoticLight
) -> Float[Array, "*shape"]:
    """Returns the level L of `ChaoticLight.noise` with which an intensity has a standard deviation.

    Args:
        sigma: Standard deviation in the units of the intensity; broadcasts against it.
        intensity: Between zero and `light.full_scale`.
        light: The hardware; its own `noise` plays no part.

    Returns:
        Numbers between 0 and 1; 0 where the hardware leaves no choice.

    Raises:
        ValueError: A deviation lies outside what the hardware can do, or an intensity is negative,
            NaN or above full scale; where they are concrete.
    """
    if is_concrete(light.full_scale):
        check_number("intensity", intensity, 0, float(light.full_scale) * (1 + SLACK))
    smallest, largest = sigma_bounds(intensity, light)
    sigma = jnp.broadcast_to(with_leading_axes(sigma, smallest.shape), smallest.shape).astype(
        smallest.dtype
    )
    _check_within(sigma, intensity, smallest, largest, light)
    # The inverse of sigma = L sigma_max + (1 - L) sigma_min (Klein's thesis, figure 10.4).
    span = largest - smallest
    return jnp.clip((sigma - smallest) / jnp.where(span > 0, span, 1), 0, 1)


def _check_within(sigma: Any, intensity: Any, low: Any, high: Any, light: ChaoticLight) -> None:
    if not all(map(is_concrete, (sigma, low, high))):
        return
    wanted, low, high = (np.asarray(jax.device_get(v), float) for v in (sigma, low, high))
    bad = ~((wanted >= low * (1 - SLACK)) & (wanted <= high * (1 + SLACK)))
    if not bad.any():
        return
    at = tuple(np.argwhere(bad)[0])
    value = float(np.asarray(intensity)[at])
    raise ValueError(
        f"{bad.sum()} of {bad.size} deviations are outside the hardware's range: sigma "
        f"{wanted[at]:.4g} at intensity {value:.4g}, where {light.slots} slots of cap "
        f"{float(light.cap):.4g} can have {low[at]:.4g} to {high[at]:.4g}. More slots lower "
        "the range, a larger cap raises it."
    )
