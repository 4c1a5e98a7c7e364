"""`Magnitude`: the smallest weights of an array go; `cubic_schedule` is the schedule of how many.

```python
import jax
import optax
from jaxeff.compression import quantized
from jaxeff.nn import small_classifier
from jaxeff.pruning.sparsity import Magnitude, cubic_schedule
from jaxeff.training import cross_entropy, fit

f, params, data = small_classifier()
share = cubic_schedule(0.9, begin=4, end=12)

def loss(key, params, state, batch, step):
    sparse = quantized(f, {"*:linear": Magnitude(share(step))})
    return cross_entropy(sparse)(key, params, state, batch, step)

run = fit(jax.random.key(0), loss, params, data,
          optimizer=optax.adam(1e-3), epochs=2, batch_size=32)
g = quantized(f, {"*:linear": Magnitude(0.9)})
```

Sharp edge: shares are of an array each; weights of equal magnitude stay together.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float

from jaxeff.compression import Tensor
from jaxeff.compression.quantizers import largest_mask
from jaxeff.core import Number, check_count, check_number, register_setting
from jaxeff.pruning.sparsity._protocol import Sparse


@register_setting
@dataclass(frozen=True)
class Magnitude(Sparse):
    """The largest weights of an array: `Magnitude(0.9)` removes nine of ten.

    Attributes:
        fraction: The share that goes, a leaf: a schedule needs no second trace.

    Raises:
        TypeError, ValueError: `fraction` isn't between 0 and 1.

    References:
        Han et al., "Learning both Weights and Connections", arXiv:1506.02626.
    """

    fraction: Annotated[Float[Array, ""] | float, Number(0, 1)]

    def mask(self, x: Float[Array, "*shape"], tensor: Tensor) -> Bool[Array, "*shape"]:
        """Returns the largest magnitudes."""
        del tensor
        return largest_mask(jnp.abs(x), 1 - jnp.asarray(self.fraction, jnp.float32))

    def kept(self, shape: tuple[int, ...], tensor: Tensor) -> Any:
        """Returns the share that stays, rounded to a whole number of weights."""
        del tensor
        # A learnt or scheduled share may be traced; a number stays a number for reports.
        xp: Any = np if isinstance(self.fraction, float | int) else jnp
        return xp.round((1 - self.fraction) * int(np.prod(shape)))


def cubic_schedule(final: float, *, begin: int, end: int, initial: float = 0.0) -> optax.Schedule:
    """Returns the share that is removed after so many updates: fast first, when much can go.

    ```text
    s_f + (s_i - s_f) (1 - (t - begin) / (end - begin))^3
    ```

    Args:
        final: s_f, from `end` on.
        begin: The first update of the schedule.
        end: The last update.
        initial: s_i, until `begin`.

    Raises:
        ValueError: A share isn't between 0 and 1, or `end` isn't after `begin`.

    Source: Zhu and Gupta, "To prune, or not to prune", arXiv:1710.01878, eq. 1.
    """
    check_number("cubic_schedule: final", final, 0, 1)
    check_number("cubic_schedule: initial", initial, 0, 1)
    check_count("cubic_schedule: begin", begin, 0)
    check_count("cubic_schedule: end", end, begin + 1)
    return optax.polynomial_schedule(initial, final, 3, end - begin, begin)


__all__ = ["Magnitude", "cubic_schedule"]
