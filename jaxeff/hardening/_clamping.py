"""Weight clamping: parameters that stay inside the range of an analog device.

```python
import jax
import optax

from jaxeff.hardening import clamped

def kernels(params):
    return jax.tree_util.tree_map_with_path(lambda path, w: "kernel" in str(path[-1]), params)

optimizer = optax.chain(optax.adam(1e-3), clamped(-1.0, 1.0))
optimizer = optax.chain(optax.adam(1e-3), optax.masked(clamped(-1.0, 1.0), kernels))
state = optimizer.init({"kernel": jax.numpy.ones((2, 3)), "bias": jax.numpy.zeros(3)})
```

It is what `optax.keep_params_nonnegative` is for non-negative weights: an update that would leave
the box ends on its boundary. Noise grows weights (that is how networks drown additive noise), so
without a bound a trained network may need more than a device has.

Sharp edges: it must come last, after the learning rate. Adding a rounded update may miss the bound
by an ulp.
"""

from typing import Any

import jax
import optax

from jaxeff.core import check_number, finite, validate


@validate(low=finite, high=finite)
def clamped(low: float, high: float) -> optax.GradientTransformation:
    """Keeps parameters between two bounds after each update.

    Args:
        low: The smallest value allowed.
        high: The largest value allowed.

    Returns:
        A stateless transformation of updates; its `update` needs the parameters.

    Raises:
        ValueError: A bound is NaN, or there is nothing between them.
    """
    check_number("low", low, finite=False)
    check_number("high", high, low=low, finite=False)

    def update(updates: Any, params: Any) -> Any:
        # What is clipped is the sum: an update within the bounds may still leave them.
        after = optax.tree.clip(optax.apply_updates(params, updates), low, high)
        return jax.tree.map(lambda new, old: new - old, after, params)

    return optax.stateless(update)
