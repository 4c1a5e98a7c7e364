"""Average pooling that promotes no dtypes.

Flax's divides by a NumPy integer, which `jax_numpy_dtype_promotion="strict"` refuses.
"""

import math

import jax
from flax import linen
from jaxtyping import Array, Float


def avg_pool(
    x: Float[Array, "... height width channels"], window: tuple[int, ...], strides: tuple[int, ...]
) -> Float[Array, "... rows columns channels"]:
    """Averages each window, without padding; as `flax.nnx.avg_pool`.

    Args:
      x: Images, channels last.
      window: The height and width.
      strides: Steps between windows.
    """
    # A Python integer is weakly typed: the quotient keeps the dtype of the images.
    return linen.pool(x, 0.0, jax.lax.add, window, strides, "VALID") / math.prod(window)
