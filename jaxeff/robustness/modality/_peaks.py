"""Two peaks or one: how deep the valley is between the peaks of a layer's values.

```python
>>> import numpy as np
>>> from jaxeff.robustness import peaks
>>> normal = np.random.default_rng(0).normal(size=(2, 500))
>>> peaks(np.concatenate([np.exp(normal[0] - 5), np.exp(normal[1] + 5)]), scale="log").two
True
>>> peaks(normal).valley  # 0: nothing between the peaks; 1: there is a single peak
1.0

```

A network that lives with huge multiplicative noise keeps its information in whether a value is
small or large: magnitudes gather around two values ("self-binarization"). Separability, which
`jaxeff.robustness.bimodality` measures, is what two values would keep; it stays moderate as long as
peaks are wide. The valley says whether there are two of them at all.

References:
    Borras et al., arXiv:2212.10430, section on multiplicative noise.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float
from scipy.signal import find_peaks
from scipy.stats import gaussian_kde

from jaxeff.core import check_choice, real_array, validate

GRID = 512
LEAST_PROMINENCE = 0.05
"""Of the highest peak: how far a peak rises above its surroundings, to be one."""
MOST_VALUES = 20_000


class Peaks(NamedTuple):
    """The two most prominent peaks of a distribution.

    Attributes:
        low: The lower peak's place, in the units of the values (of magnitudes on a log scale).
        high: The upper peak's; the same as `low` if there is only one.
        valley: Density at the deepest point between them over that of the lower of the two; 1 if
            there is only one.
        zero: Share of values that are exactly zero; they are left out on a log scale.
    """

    low: float
    high: float
    valley: float
    zero: float

    @property
    def two(self) -> bool:
        """Whether there are two peaks."""
        return self.valley < 1


@validate(values=real_array(nan=True))
def peaks(values: Float[Array | np.ndarray, "..."], *, scale: str = "linear") -> Peaks:
    """Finds the peaks of a kernel density estimate (Scott's bandwidth) and the valley between.

    Args:
        values: Finite numbers, in any shape; beyond 20,000 an even selection is used.
        scale: "linear", or "log" for the logarithm of the magnitudes that aren't zero.

    Raises:
        ValueError: An unknown scale, values that aren't finite, or fewer than ten different ones.
    """
    check_choice("scale", scale, ("linear", "log"))
    flat = np.ravel(np.asarray(values, float))
    if not np.isfinite(flat).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(flat))} values aren't finite.")
    zero = float(np.mean(flat == 0)) if flat.size else 0.0
    if scale == "log":
        flat = np.log(np.abs(flat[flat != 0]))
    if len(np.unique(flat)) < 10:
        raise ValueError(f"{len(np.unique(flat))} different values have no density; 10 are needed.")
    # The density estimate takes time in proportion to values times grid points.
    flat = flat[:: -(-flat.size // MOST_VALUES)]
    # The outermost thousandths are left out: a grid over far outliers would be too coarse for
    # peaks.
    low, high = np.quantile(flat, [0.001, 0.999])
    grid = np.linspace(low, high, GRID)
    density = np.pad(gaussian_kde(flat)(grid), 1)  # so that an end can be a peak
    tops, facts = find_peaks(density, prominence=LEAST_PROMINENCE * density.max())
    # By prominence, not height: a shoulder of the main peak is high but hardly a peak of
    # its own.
    chosen = np.sort(tops[np.argsort(-facts["prominences"], kind="stable")[:2]])
    # A single peak is first and last at once, and the valley then is the peak: 1.
    first, last = chosen[0], chosen[-1]
    valley = density[first : last + 1].min() / density[chosen].min()
    places = grid[chosen - 1]
    if scale == "log":
        places = np.exp(places)
    return Peaks(float(places[0]), float(places[-1]), float(valley), zero)
