"""Silverman's test of one peak: whether two peaks are more than chance.

```python
import jax
import numpy as np

from jaxeff.robustness import one_peak_pvalue

normal = np.random.default_rng(0).normal(size=(2, 400))
one_peak_pvalue(jax.random.key(0), normal[0])                          # .7: one peak will do
one_peak_pvalue(jax.random.key(0), np.append(normal[0], normal[1] + 4))   # below .01
```

`peaks` draws a density at a bandwidth of its own, and any sample's density has bumps. Here the
least bandwidth at which the density has a single peak is measured: large if there are two. Samples
of that very density, the likeliest one with a single peak, are then drawn and smoothed as much; how
many of them have more than one peak is the p-value.

Sharp edges:
    The test is cautious: p-values of a single peak pile up above their uniform distribution.
    It tests one peak against several, and says nothing of where they are: see `peaks`.
    An end at which many values pile up, as a cut-off makes it, is a peak.

References:
    Silverman, "Using kernel density estimates to investigate multimodality", Journal of the Royal
    Statistical Society B 43 (1981).
"""

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.ndimage import gaussian_filter1d
from scipy.signal import find_peaks

from jaxeff.core import check_count, check_key, real_array, static_integer, validate

GRID = 1024
_STEPS = 30
_NEGLIGIBLE = 1e-6
"""Of the highest peak: bumps that are the filter's rounding."""


@validate(values=real_array(nan=True), draws=static_integer())
def one_peak_pvalue(
    key: PRNGKeyArray, values: Float[Array | np.ndarray, "..."], *, draws: int = 200
) -> float:
    """Tests whether values come from a density with a single peak.

    Args:
        key: Random key.
        values: Finite numbers, in any shape, at least ten different ones.
        draws: Samples that are drawn of the smoothed density.

    Returns:
        The p-value of a single peak, at least 1 / (draws + 1).

    Raises:
        TypeError: The key is none, or `draws` no integer.
        ValueError: `draws` is below 1, or the values are too few or not finite.
    """
    check_key("one_peak_pvalue: key", key)
    check_count("draws", draws)
    flat = np.ravel(np.asarray(values, float))
    if not np.isfinite(flat).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(flat))} values aren't finite.")
    if (different := len(np.unique(flat))) < 10:
        raise ValueError(f"{different} different values have no density; 10 are needed.")
    flat = (flat - flat.mean()) / flat.std()
    # Bisection: the number of peaks falls with the bandwidth of a Gaussian kernel
    # (Silverman).
    low, high = 1e-3, 4.0
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if _count(flat, middle) <= 1 else (middle, high)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    several = 0
    for _ in range(draws):
        # The smoothed bootstrap draws from the kernel density estimate itself.
        chosen = rng.choice(flat, flat.size) + high * rng.normal(size=flat.size)
        several += _count(chosen / (1 + high**2) ** 0.5, high) > 1  # of the values' own variance
    # The sample itself counts as one of the draws: the p-value is never zero, however few they are.
    return (several + 1) / (draws + 1)


def _count(values: Float[np.ndarray, " n"], bandwidth: float) -> int:
    """Counts the peaks of the density, on a grid that reaches beyond all values."""
    low, high = values.min() - 4 * bandwidth, values.max() + 4 * bandwidth
    counts, edges = np.histogram(values, GRID, (low, high))
    # A histogram and a filter on it in the place of a kernel per value: linear in their number.
    width = bandwidth / (edges[1] - edges[0])
    density = gaussian_filter1d(counts.astype(float), width, mode="constant", truncate=8.0)
    tops, _ = find_peaks(density, prominence=_NEGLIGIBLE * density.max())
    return len(tops)
