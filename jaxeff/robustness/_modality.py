"""Self-binarization: whether a layer's values have two peaks, and whether two values are enough.

A network that lives with huge multiplicative noise keeps its information in whether a value is
small or large: magnitudes gather around two values. `bimodality` says how much two values would
keep, `peaks` whether there are two peaks and how deep the valley between them is, and
`one_peak_pvalue` whether that is more than chance. `Binarized` replaces the values by two.

```python
import jax
import jax.numpy as jnp

from jaxeff.nn import small_classifier
from jaxeff.robustness import Binarized, accuracy_curve, activations, bimodality

key, (f, params, (x, y)) = jax.random.key(0), small_classifier()
score = bimodality(activations(f, ["relu"])(params, x)["relu"])
score.separability, score.threshold
thresholds = score.threshold * jnp.array([0.5, 1.0, 2.0])
accuracy_curve(key, f, params, (x, y), lambda t: {"relu": Binarized(t)}, thresholds, repeats=1)
```
"""

from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.ndimage import gaussian_filter1d
from scipy.signal import find_peaks
from scipy.stats import gaussian_kde

from jaxeff import core
from jaxeff.noise import Noise
from jaxeff.noise.models import perturb_at

UNIMODAL = 8 / 9


class Bimodality(NamedTuple):
    """Fit of two values to a layer's values, by Otsu's threshold.

    Sharp edges:
        8/9 is a bound that unimodal values can't pass, not a test: wide or very unequal peaks stay
        below it too.
        Strong multiplicative noise spreads the upper peak over decades. Judge such values on
        `scale="log"`, that of their magnitudes. There exact zeros, which a ReLU makes in any
        network, are a peak of their own at the floor: compare with the same layer of a network
        trained without noise.

    Attributes:
        separability: Share of the variance between the two sides, 0 to 1; NaN for values that are
            all the same.
        threshold: The best cut, in the units of the values (of their magnitudes on a log scale).
        low: Mean of the values below it (geometric on a log scale).
        high: Mean of the values above it.
        share: Share of values above.

    References:
        Otsu, "A threshold selection method from gray-level histograms", IEEE Trans. SMC 9(1), 1979.
        Borras et al., arXiv:2212.10430, section on multiplicative noise.
        Silverman, "Using kernel density estimates to investigate multimodality", Journal of the
        Royal Statistical Society B 43 (1981).
    """

    separability: Float[Array, ""]
    threshold: Float[Array, ""]
    low: Float[Array, ""]
    high: Float[Array, ""]
    share: Float[Array, ""]

    @property
    def two_peaks(self) -> Array:
        """Whether no distribution with a single peak at zero could be separated as well."""
        return self.separability > UNIMODAL


@core.validate(values=core.real_array(), least_share=core.number(0, below=0.5), floor=core.positive)
def bimodality(
    values: Float[Array, "..."],
    *,
    scale: str = "linear",
    least_share: float = 0.02,
    floor: float = 1e-6,
) -> Bimodality:
    """Computes Otsu's separability of a layer's values, at the best threshold.

    `bimodality` finds the threshold that best cuts the values in two and returns Otsu's
    separability (1979): the share of the variance that remains if each value is replaced by the
    mean of its side. That is what the threshold check does to a layer, it needs no mixture model,
    and it is a sort and a few sums, so it can be a score inside a vmapped sweep. 2/pi for a normal
    distribution, 3/4 for a uniform one, and no distribution that falls from a peak at zero, such as
    a ReLU's output, exceeds 8/9 (`UNIMODAL`: the limit of a peak with a uniform tail); two narrow
    peaks reach 1.

    Args:
        values: Finite numbers, in any shape.
        scale: "linear", or "log" for the logarithm of magnitudes.
        least_share: Each side holds at least this share: a few outliers are no peak.
        floor: On the log scale, smaller magnitudes than this times the largest count as that.

    Raises:
        ValueError: Fewer than two values, an unknown scale, or a share that leaves no cut.
    """
    core.check_choice("scale", scale, ("linear", "log"))
    flat = jnp.ravel(jnp.asarray(values, float))
    n = flat.size
    edge = max(1, round(least_share * n))
    if n < 2 * edge or n < 2:
        raise ValueError(f"{n} values can't be cut in two with {edge} on each side.")
    if scale == "log":
        magnitude = jnp.abs(flat)
        # A floor relative to the largest: the result doesn't depend on the unit of the values.
        flat = jnp.log(jnp.maximum(magnitude, floor * magnitude.max()))
    # All cuts at once: after sorting, cumulative sums give the mean of either side.
    ordered = jnp.sort(flat)
    centred = ordered - ordered.mean()
    below = jnp.cumsum(centred)[edge - 1 : n - edge]
    # Outliers are kept from being a side of their own: cuts too near an end aren't considered.
    share = jnp.arange(edge, n - edge + 1, dtype=flat.dtype) / n
    # The centred values sum to zero, so one side's sum gives both means.
    between = (below / n) ** 2 / (share * (1 - share))
    best = jnp.argmax(between)
    cut = best + edge
    lower = cut.astype(flat.dtype)  # how many values are below
    low = ordered.mean() + below[best] / lower
    high = ordered.mean() - below[best] / (n - lower)
    # Any threshold between the two neighbours makes the same cut; the middle is the safest.
    threshold = (ordered[cut - 1] + ordered[cut]) / 2
    if scale == "log":
        threshold, low, high = jnp.exp(threshold), jnp.exp(low), jnp.exp(high)
    total = jnp.mean(centred**2)
    spread = total > 0
    separability = jnp.where(spread, between[best] / jnp.where(spread, total, 1), jnp.nan)
    return Bimodality(separability, threshold, low, high, 1 - lower / n)


@core.register_setting
class Binarized(core.Setting):
    """Replaces a layer's values by one of two: the threshold check, as a setting of `noisy`.

    Values above the threshold become their mean, so do those that aren't; the means are taken over
    the whole array, so they depend on the batch.

    Attributes:
        threshold: Value that separates the two; a scalar.
        after: Noise that acts first, such as what the network was trained with.

    Raises:
        ValueError: The threshold is NaN.
    """

    threshold: Annotated[Float[Array, ""] | float, core.Number()]
    after: Noise | None = None

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns an array of two values."""
        return self.perturb_site(key, 0, x)

    def perturb_site(
        self, key: PRNGKeyArray, site: int, x: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        """Returns an array of two values, with noise that depends on the site."""
        if self.after is not None:
            x = perturb_at(key, self.after, x, site)
        above = x > jnp.asarray(self.threshold, x.dtype)

        def mean(side: Array) -> Array:
            # A side without values has no mean; nothing takes it, but its gradient must be finite.
            return jnp.where(side, x, 0).sum() / jnp.maximum(side.sum(), 1).astype(x.dtype)

        return jnp.where(above, mean(above), mean(~above))


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


@core.validate(values=core.real_array(nan=True))
def peaks(values: Float[Array | np.ndarray, "..."], *, scale: str = "linear") -> Peaks:
    """Finds the peaks of a kernel density estimate (Scott's bandwidth) and the valley between.

    Separability stays moderate as long as peaks are wide; the valley of `peaks` says whether there
    are two of them at all.

    ```python
    >>> import numpy as np
    >>> from jaxeff.robustness import peaks
    >>> normal = np.random.default_rng(0).normal(size=(2, 500))
    >>> peaks(np.concatenate([np.exp(normal[0] - 5), np.exp(normal[1] + 5)]), scale="log").two
    True
    >>> peaks(normal).valley  # 0: nothing between the peaks; 1: there is a single peak
    1.0

    ```

    Args:
        values: Finite numbers, in any shape; beyond 20,000 an even selection is used.
        scale: "linear", or "log" for the logarithm of the magnitudes that aren't zero.

    Raises:
        ValueError: An unknown scale, values that aren't finite, or fewer than ten different ones.
    """
    core.check_choice("scale", scale, ("linear", "log"))
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
    # By prominence, not height: a shoulder of the main peak is high but hardly a peak of its own.
    chosen = np.sort(tops[np.argsort(-facts["prominences"], kind="stable")[:2]])
    # A single peak is first and last at once, and the valley then is the peak: 1.
    first, last = chosen[0], chosen[-1]
    valley = density[first : last + 1].min() / density[chosen].min()
    places = grid[chosen - 1]
    if scale == "log":
        places = np.exp(places)
    return Peaks(float(places[0]), float(places[-1]), float(valley), zero)


_BINS = 1024
_STEPS = 30
_NEGLIGIBLE = 1e-6
"""Of the highest peak: bumps that are the filter's rounding."""


@core.validate(values=core.real_array(nan=True), draws=core.static_integer())
def one_peak_pvalue(
    key: PRNGKeyArray, values: Float[Array | np.ndarray, "..."], *, draws: int = 200
) -> float:
    """Tests whether values come from a density with a single peak.

    `peaks` draws a density at a bandwidth of its own, and any sample's density has bumps.
    Silverman's test of one peak measures the least bandwidth at which the density has a single one:
    large if there are two. Samples of that very density, the likeliest one with a single peak, are
    then drawn and smoothed as much; how many of them have more than one peak is the p-value.

    ```python
    import jax
    import numpy as np

    from jaxeff.robustness import one_peak_pvalue

    normal = np.random.default_rng(0).normal(size=(2, 400))
    one_peak_pvalue(jax.random.key(0), normal[0])                          # .7: one peak will do
    one_peak_pvalue(jax.random.key(0), np.append(normal[0], normal[1] + 4))   # below .01
    ```

    Sharp edges:
        The test is cautious: p-values of a single peak pile up above their uniform distribution.
        It tests one peak against several, and says nothing of where they are: see `peaks`.
        An end at which many values pile up, as a cut-off makes it, is a peak.

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
    flat = np.ravel(np.asarray(values, float))
    if not np.isfinite(flat).all():
        raise ValueError(f"{np.count_nonzero(~np.isfinite(flat))} values aren't finite.")
    if (different := len(np.unique(flat))) < 10:
        raise ValueError(f"{different} different values have no density; 10 are needed.")
    flat = (flat - flat.mean()) / flat.std()
    # Bisection: the number of peaks falls with the bandwidth of a Gaussian kernel (Silverman).
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
    counts, edges = np.histogram(values, _BINS, (low, high))
    # A histogram and a filter on it in the place of a kernel per value: linear in their number.
    width = bandwidth / (edges[1] - edges[0])
    density = gaussian_filter1d(counts.astype(float), width, mode="constant", truncate=8.0)
    tops, _ = find_peaks(density, prominence=_NEGLIGIBLE * density.max())
    return len(tops)
