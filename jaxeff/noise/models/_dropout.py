"""Dropout: values are zero with some probability, and the others larger in proportion.

```python
import jax

import jaxeff
from jaxeff.nn import small_classifier
from jaxeff.noise import Dropout

f, params, (x, y) = small_classifier()
drop = {"relu*": Dropout(0.15)}
logits = jaxeff.noisy(f, drop)(jax.random.key(0), params, x)     # one draw: training, a sample
jaxeff.moments(f, noise=drop)(params, x)                         # mean and variance of all draws
```

Sampled at inference, it is Monte Carlo dropout; `moments` does without samples.

References:
    Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", JMLR 15
    (2014). Gal and Ghahramani, "Dropout as a Bayesian Approximation", arXiv:1506.02142. Tompson et
    al., "Efficient Object Localization Using Convolutional Networks", arXiv:1411.4280: whole
    channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxeff.core import Number, is_concrete, register_setting, static
from jaxeff.noise.models._draws import Draw, DrawnNoise
from jaxeff.noise.models._model import Axis, Place, Sharing, real_dtype
from jaxeff.noise.models._protocol import Part


@register_setting
@dataclass(frozen=True)
class Dropout(DrawnNoise):
    """Dropout, `x * B / (1 - rate)` with B of 0 (probability `rate`) or 1.

    The mean is `x`. The rate may be traced, for a sweep; it has no gradient.

    Attributes:
        rate: Probability of zero, at least 0 and below 1; a scalar or an array.
        at: Place where a layer is perturbed: "output", "weights" (DropConnect) or "input".
        per: What is dropped together: "element" (nothing), "channel" (a channel of one sample, over
            all positions) or "sample" (all of one sample).
        along: Axis that an array of rates has one entry along: "sample" or "channel".

    Raises:
        ValueError: The rate is out of range, or a choice is unknown.
    """

    rate: Annotated[Float[Array, "..."] | float, Number(0)]
    at: Place = static("output")
    per: Sharing = static("element")
    along: Axis = static(None)

    def __post_init__(self) -> None:
        """Checks the fields."""
        super().__post_init__()
        if is_concrete(self.rate) and np.any(np.asarray(self.rate) >= 1):
            raise ValueError(
                f"Dropout.rate must be at least 0 and below 1, not {self.rate}: at 1 nothing is "
                "left of the site; give a lower rate, or remove the layer"
            )

    def draws(self, x: Any) -> Sequence[Draw]:
        """Returns one array of uniform numbers."""
        return [self._uniform(x)]

    def apply(self, x: Any, *numbers: Any) -> Any:
        """Sets random entries to zero and scales the others."""
        kept = 1 - self._level("rate", x)
        # Numbers lie in [0, 1), so a rate of zero keeps every value exactly.
        return x * jnp.where(numbers[0] < kept, 1 / kept, 0)

    def terms(self, x: Any) -> Sequence[Part]:
        """Returns the random factor, of mean 1."""
        rate = self._level("rate", x)
        shape = self._draw_shape(jnp.shape(x))
        one = jnp.ones(shape, real_dtype(x))
        # B / (1 - p) has the variance p (1 - p) / (1 - p)**2 = p / (1 - p).
        return [(one, self._fitting("rate", rate / (1 - rate), shape))]

    def combine(self, x: Any, *parts: Any) -> Any:
        """Multiplies the value by its factor."""
        return x * parts[0]
