"""`Cyclical`: step sizes that start anew, so that one chain visits several modes.

```python
import jax

from jaxeff.bayes import Cyclical, sgld
from jaxeff.nn import small_classifier

f, params, data = small_classifier()
cycle = Cyclical(1e-3, length=50)
result = sgld(
    jax.random.key(0), f, params, data, step_size=cycle, temperature=cycle.temperature,
    batch_size=32, warmup=0, thin=cycle.length, samples=4, chains=1, monitor=(),
)
```

A cycle begins with large steps without noise, which leave the last mode, and ends with small ones
with noise, which sample the next. With ``thin=cycle.length`` the last draw of each is kept.

Zhang et al. 2020, "Cyclical Stochastic Gradient MCMC for Bayesian Deep Learning",
arXiv:1902.03932, equation (1) and algorithm 1.

Sharp edge: draws of several modes are no converged chain: compare predictions, not parameters.
"""

from dataclasses import dataclass
from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import Count, Number, Setting


@dataclass(frozen=True)
class Cyclical(Setting):
    """A schedule of the iteration: the step size; `temperature` is that of the noise.

    Attributes:
        peak: Step size at the start of a cycle.
        length: Iterations of a cycle.
        exploring: Share of a cycle that comes first and has no noise.
    """

    peak: Annotated[float, Number(above=0)]
    length: Annotated[int, Count()]
    exploring: Annotated[float, Number(0, below=1)] = 0.5

    def __call__(self, iteration: Array) -> Float[Array, ""]:
        """Computes the step size: half a cosine from the peak towards zero."""
        return self.peak / 2 * (1 + jnp.cos(jnp.pi * self._passed(iteration)))

    def temperature(self, iteration: Array) -> Float[Array, ""]:
        """Computes the temperature: 0 while exploring, then 1."""
        return (self._passed(iteration) >= self.exploring).astype(jnp.float32)

    def _passed(self, iteration: Array) -> Array:
        """Computes the share of the cycle that has passed."""
        return (jnp.asarray(iteration) % self.length).astype(jnp.float32) / self.length
