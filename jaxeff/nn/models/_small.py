"""`small_classifier`: a network and images for examples, which compile and train in seconds.

```python
import jaxeff
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
jaxeff.summary(f, params, x)
```

The examples of this library's documentation run on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from jaxeff.core import functional, static_integer, validate
from jaxeff.nn.layers import avg_pool


class SmallCNN(nnx.Module):
    """``conv1``, ReLU, 2×2 average pooling, ``fc1``, ReLU, ``fc2``, for images of 28×28 pixels."""

    def __init__(self, *, rngs: nnx.Rngs):
        """Builds the layers.

        Args:
          rngs: Keys for the initial parameters.
        """
        # A stride of 4 leaves 7×7 positions, 3×3 after pooling: 36 features, quick to compile.
        self.conv1 = nnx.Conv(1, 4, (5, 5), strides=4, rngs=rngs)
        self.fc1 = nnx.Linear(36, 32, rngs=rngs)
        self.fc2 = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x: Float[Array, "batch 28 28 1"]) -> Float[Array, "batch 10"]:
        """Returns the logits."""
        x = avg_pool(jax.nn.relu(self.conv1(x)), (2, 2), strides=(2, 2))
        return self.fc2(jax.nn.relu(self.fc1(x.reshape(x.shape[0], -1))))


@validate(examples=static_integer())
def small_classifier(
    examples: int = 256,
) -> tuple[
    Callable[..., Any],
    dict[str, Any],
    tuple[Float[Array, "examples 28 28 1"], Int[Array, " examples"]],
]:
    """Makes an untrained network of 1,618 parameters and loads some of scikit-learn's digits.

    Args:
      examples: Number of images, at most 1,437.

    Returns:
      The function, its parameters, and normalized images with their labels.
    """
    from jaxeff.data import load, normalize  # scikit-learn comes with it

    f, params = functional(SmallCNN(rngs=nnx.Rngs(0)))
    digits = load("digits")
    images = normalize(digits.train_images[:examples], "digits")
    return f, params, (images, jnp.asarray(digits.train_labels[:examples]))
