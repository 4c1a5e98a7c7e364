"""Robustness of a network to noise: curves, midpoints, areas, activations, sensitivities.

```python
import jax
import jax.numpy as jnp
import optax
from jaxeff import robustness
from jaxeff.nn import small_classifier
from jaxeff.noise import Additive
from jaxeff.training import cross_entropy, fit

key, levels = jax.random.key(0), jnp.logspace(-2, 2, 17)
f, params, (x, y) = small_classifier()
params = fit(
    key, cross_entropy(f), params, (x, y), optimizer=optax.adam(1e-2), epochs=15, batch_size=32
).params
curve = robustness.accuracy_curve(key, f, params, (x, y), {"*": Additive(levels)}, levels)
midpoint = robustness.fit_midpoint(curve.levels, curve.draws)   # also of a sweep, over its seeds
```

`bimodality` of `activations` shows self-binarization; `kl_sensitivity` compares layers without
training, and `learn_budget` spreads noise over them by gradient. Pictures of all of it are in
`jaxeff.robustness.curves`.
"""

from jaxeff.robustness._modality import UNIMODAL as UNIMODAL
from jaxeff.robustness._modality import Bimodality as Bimodality
from jaxeff.robustness._modality import Binarized as Binarized
from jaxeff.robustness._modality import Peaks as Peaks
from jaxeff.robustness._modality import bimodality as bimodality
from jaxeff.robustness._modality import one_peak_pvalue as one_peak_pvalue
from jaxeff.robustness._modality import peaks as peaks
from jaxeff.robustness._sensitivity import ONE_BIT as ONE_BIT
from jaxeff.robustness._sensitivity import NoiseBudget as NoiseBudget
from jaxeff.robustness._sensitivity import NoiseSensitivity as NoiseSensitivity
from jaxeff.robustness._sensitivity import allocate_repetitions as allocate_repetitions
from jaxeff.robustness._sensitivity import kl_sensitivity as kl_sensitivity
from jaxeff.robustness._sensitivity import learn_budget as learn_budget
from jaxeff.robustness._sensitivity import spread_levels as spread_levels
from jaxeff.robustness._sensitivity import tolerated_level as tolerated_level
from jaxeff.robustness.curves import Curve as Curve
from jaxeff.robustness.curves import Midpoint as Midpoint
from jaxeff.robustness.curves import accuracy_curve as accuracy_curve
from jaxeff.robustness.curves import activations as activations
from jaxeff.robustness.curves import bin_edges as bin_edges
from jaxeff.robustness.curves import envelope as envelope
from jaxeff.robustness.curves import fit_midpoint as fit_midpoint
from jaxeff.robustness.curves import logistic as logistic
from jaxeff.robustness.curves import noisy_accuracy as noisy_accuracy
from jaxeff.robustness.curves import preserved_accuracy as preserved_accuracy
from jaxeff.robustness.curves import robustness_area as robustness_area
from jaxeff.robustness.curves import summarize as summarize
from jaxeff.robustness.curves import weight_growth as weight_growth
from jaxeff.robustness.curves import weight_rms as weight_rms
