"""Outputs for more inputs than fit in memory at once.

```python
import jax.numpy as jnp

from jaxeff.uncertainty import in_batches

images = jnp.ones((1200, 8))
assert in_batches(lambda x: x.sum(1), images, batch_size=500).shape == (1200,)   # three calls
```
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxeff.core import function_of_form, instance_of, parameter_tree, validate


@validate(
    f=function_of_form("f(inputs)"),
    axis=instance_of(int),
    inputs=parameter_tree,
)
def in_batches(
    f: Callable[[Any], Any], inputs: Any, batch_size: int = 500, *, axis: int = 0
) -> Any:
    """Applies a function to inputs a batch at a time.

    Args:
        f: A function of a batch of inputs; a last batch that isn't full is passed as it is.
        inputs: An array, batch axis first.
        batch_size: Inputs at a time.
        axis: The batch axis of the outputs: ``-2`` for logits ``[samples, batch, classes]``.

    Returns:
        What ``f`` returns for all inputs at once: each leaf's batches joined along ``axis``.

    Raises:
        ValueError: There are no inputs.
    """
    if not len(inputs):
        raise ValueError("there are no inputs to pass in batches")
    # A shorter last batch is passed as it is: padding it would change a function that looks at its
    # whole batch. Compiled functions compile once more for it.
    parts = [f(inputs[i : i + batch_size]) for i in range(0, len(inputs), batch_size)]
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis), *parts)
