"""`fit_light`: modes, photon rate and electronic noise from measured means and variances.

A reading I of chaotic light in one slot has the variance I²/M + I/photons + electronic²: a parabola
whose coefficients are the three numbers (Klein's thesis, eq. (10.1), with M = 10.64 by such a fit).

```python
import numpy as np

from jaxeff.photonics import ChaoticLight, fit_light

mean = np.linspace(0, 1, 11)                             # readings at eleven intensities
variance = mean**2 / 10.64 + mean / 500 + 0.02**2        # measured, in practice
found = fit_light(mean, variance)                        # modes 10.64, photons 500, electronic 0.02
light = ChaoticLight(modes=found.modes, photons=found.photons, electronic=found.electronic)
```

Sharp edge: a saturating detector narrows readings at large means; leave those out.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxeff.core import real_array, validate

Values = Float[Array | np.ndarray, " points"]


class Measured(NamedTuple):
    """The numbers of a light source and its detector.

    Attributes:
        modes: Degeneracy factor M; infinite if there is no excess noise.
        photons: Photons per unit of the readings; infinite if there is no shot noise.
        electronic: Standard deviation of a reading without light, in the units of the readings.
    """

    modes: float
    photons: float
    electronic: float


@validate(mean=real_array(1), variance=real_array(1))
def fit_light(mean: Values, variance: Values) -> Measured:
    """Fits the parabola, every point by its relative error, with coefficients that aren't negative.

    Args:
        mean: Mean readings at several intensities, not negative.
        variance: Their variances, positive.

    Raises:
        ValueError: Fewer than three points, of different lengths, or numbers that are negative,
            NaN or infinite.
    """
    from scipy.optimize import nnls  # slow to load, and only needed here

    x, y = (np.asarray(jax.device_get(v), float) for v in (mean, variance))
    if x.ndim != 1 or x.shape != y.shape or len(x) < 3:
        raise ValueError(
            f"fit_light needs as many variances as means, at least three, not shapes {x.shape} "
            f"and {y.shape}."
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all() and x.min() >= 0 and y.min() > 0):
        raise ValueError("fit_light needs finite means of zero or more and positive variances.")
    scale = max(x.max(), 1e-300)  # columns of one size
    # Divided by the variances: each point counts by its relative error, so that small readings,
    # which alone show the electronic noise, aren't drowned by large ones.
    columns = np.stack([np.ones_like(x), x / scale, (x / scale) ** 2], 1) / y[:, None]
    # Non-negative: a source of noise takes no variance away, but scatter in the data could make its
    # coefficient negative.
    floor, shot, excess = nnls(columns, np.ones_like(x))[0] / [1, scale, scale**2]
    modes, photons = (1 / float(v) if v > 0 else float("inf") for v in (excess, shot))
    return Measured(modes, photons, float(floor**0.5))
