"""Robustness of a network to noise: curves, midpoints, areas, activations, sensitivities.

```python
import jax
import jax.numpy as jnp
import optax

from jaxeff import robustness
from jaxeff.nn import small_classifier
from jaxeff.noise import Additive, slots
from jaxeff.training import cross_entropy, fit

key, levels = jax.random.key(0), jnp.logspace(-2, 2, 17)
f, params, (x, y) = small_classifier()
params = fit(
    key, cross_entropy(f), params, (x, y), optimizer=optax.adam(1e-2), epochs=15, batch_size=32
).params

curve = robustness.accuracy_curve(key, f, params, (x, y), {"*": Additive(levels)}, levels)
midpoint = robustness.fit_midpoint(curve.levels, curve.draws)   # also of a sweep, over its seeds

sites = slots(f, params, x)
robustness.bimodality(robustness.activations(f, ["relu"])(params, x)["relu"])  # self-binarization
robustness.kl_sensitivity(key, f, params, x, sites, levels)     # layers compared without training
robustness.learn_budget(                                        # noise spread by gradient
    key, f, params, (x, y), sites, 0.5, epochs=2, batch_size=32
)
```

Pictures of all of it are in `jaxeff.robustness.curves`.
"""

from jaxeff.robustness._modality import (
    UNIMODAL,
    Bimodality,
    Binarized,
    Peaks,
    bimodality,
    one_peak_pvalue,
    peaks,
)
from jaxeff.robustness._sensitivity import (
    ONE_BIT,
    NoiseBudget,
    NoiseSensitivity,
    allocate_repetitions,
    kl_sensitivity,
    learn_budget,
    spread_levels,
    tolerated_level,
)
from jaxeff.robustness.curves import (
    Curve,
    Midpoint,
    accuracy_curve,
    activations,
    bin_edges,
    envelope,
    fit_midpoint,
    logistic,
    noisy_accuracy,
    preserved_accuracy,
    robustness_area,
    summarize,
    weight_growth,
    weight_rms,
)

__all__ = [
    "ONE_BIT",
    "UNIMODAL",
    "Bimodality",
    "Binarized",
    "Curve",
    "Midpoint",
    "NoiseBudget",
    "NoiseSensitivity",
    "Peaks",
    "accuracy_curve",
    "activations",
    "allocate_repetitions",
    "bimodality",
    "bin_edges",
    "envelope",
    "fit_midpoint",
    "kl_sensitivity",
    "learn_budget",
    "logistic",
    "noisy_accuracy",
    "one_peak_pvalue",
    "peaks",
    "preserved_accuracy",
    "robustness_area",
    "spread_levels",
    "summarize",
    "tolerated_level",
    "weight_growth",
    "weight_rms",
]
