"""Self-binarization: whether a layer's values have two peaks, and whether two values are enough.

```python
import jax
import jax.numpy as jnp

from jaxeff.nn import small_classifier
from jaxeff.robustness import Binarized, accuracy_curve, activations, bimodality

key, (f, params, (x, y)) = jax.random.key(0), small_classifier()
score = bimodality(activations(f, ["relu"])(params, x)["relu"])
score.separability, score.threshold
thresholds = score.threshold * jnp.array([0.5, 1.0, 2.0])
accuracy_curve(key, f, params, lambda t: {"relu": Binarized(t)}, thresholds, (x, y), repeats=1)
```

`bimodality` finds the threshold that best cuts the values in two and returns Otsu's separability
(1979): the share of the variance that remains if each value is replaced by the mean of its side.
That is what the threshold check does to a layer, it needs no mixture model, and it is a sort and a
few sums, so it can be a score inside a vmapped sweep. 2/pi for a normal distribution, 3/4 for a
uniform one, and no distribution that falls from a peak at zero, such as a ReLU's output, exceeds
8/9 (`UNIMODAL`: the limit of a peak with a uniform tail); two narrow peaks reach 1.

Sharp edges:
    8/9 is a bound that unimodal values can't pass, not a test: wide or very unequal peaks stay
    below it too.
    Strong multiplicative noise spreads the upper peak over decades. Judge such values on
    `scale="log"`, that of their magnitudes. There exact zeros, which a ReLU makes in any network,
    are a peak of their own at the floor: compare with the same layer of a network trained without
    noise.

References:
    Otsu, "A threshold selection method from gray-level histograms", IEEE Trans. SMC 9(1), 1979.
    Borras et al., arXiv:2212.10430, section on multiplicative noise.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import (
    Number,
    Setting,
    check_choice,
    check_number,
    number,
    positive,
    real_array,
    register_setting,
    validate,
)
from jaxeff.noise import Noise
from jaxeff.noise.models import perturb_at

UNIMODAL = 8 / 9


class Bimodality(NamedTuple):
    """Fit of two values to a layer's values, by Otsu's threshold.

    Attributes:
        separability: Share of the variance between the two sides, 0 to 1; NaN for values that are
            all the same.
        threshold: The best cut, in the units of the values (of their magnitudes on a log scale).
        low: Mean of the values below it (geometric on a log scale).
        high: Mean of the values above it.
        share: Share of values above.
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


@validate(values=real_array(), least_share=number(0, below=0.5), floor=positive)
def bimodality(
    values: Float[Array, "..."],
    *,
    scale: str = "linear",
    least_share: float = 0.02,
    floor: float = 1e-6,
) -> Bimodality:
    """Computes Otsu's separability of a layer's values, at the best threshold.

    Args:
        values: Finite numbers, in any shape.
        scale: "linear", or "log" for the logarithm of magnitudes.
        least_share: Each side holds at least this share: a few outliers are no peak.
        floor: On the log scale, smaller magnitudes than this times the largest count as that.

    Raises:
        ValueError: Fewer than two values, an unknown scale, or a share that leaves no cut.
    """
    check_choice("scale", scale, ("linear", "log"))
    check_number("least_share", least_share, low=0, high=0.5)
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


@register_setting
@dataclass(frozen=True)
class Binarized(Setting):
    """Replaces a layer's values by one of two: the threshold check, as a setting of `noisy`.

    Values above the threshold become their mean, so do those that aren't; the means are taken over
    the whole array, so they depend on the batch.

    Attributes:
        threshold: Value that separates the two; a scalar.
        after: Noise that acts first, such as what the network was trained with.

    Raises:
        ValueError: The threshold is NaN.
    """

    threshold: Annotated[Float[Array, ""] | float, Number()]
    after: Noise | None = None

    def perturb(self, key: PRNGKeyArray, x: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Returns an array of two values."""
        return self.perturb_site(key, 0, x)

    def perturb_site(
        self, key: PRNGKeyArray, site: int, x: Float[Array, "*shape"]
    ) -> Float[Array, "*shape"]:
        """Returns an array of two values, with noise that depends on the site."""
        if self.after is not None:
            x = perturb_at(self.after, key, site, x)
        above = x > jnp.asarray(self.threshold, x.dtype)

        def mean(side: Array) -> Array:
            # A side without values has no mean; nothing takes it, but its gradient must be finite.
            return jnp.where(side, x, 0).sum() / jnp.maximum(side.sum(), 1).astype(x.dtype)

        return jnp.where(above, mean(above), mean(~above))
