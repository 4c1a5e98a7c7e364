"""The usual augmentation of CIFAR-10: a random crop of the padded image, and a random flip.

```python
import jax
import jax.numpy as jnp

from jaxeff.data import augment

images = jnp.ones((8, 32, 32, 3))
assert augment(jax.random.key(0), images, pad=4).shape == images.shape
```
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, Shaped

from jaxeff.core import real_array, static_integer, validate


@validate(images=real_array(nan=True), pad=static_integer(0))
def augment(
    key: PRNGKeyArray,
    images: Shaped[Array, "batch height width channels"],
    pad: int = 4,
    flip: bool = True,
) -> Shaped[Array, "batch height width channels"]:
    """Shifts each image by up to ``pad`` pixels (zeros move in) and mirrors half of them.

    Pure and jittable (``pad`` and ``flip`` are static). Augment before normalising, or zeros will
    not be black.

    Args:
        key: Random key.
        images: NHWC, any dtype.
        pad: Largest shift in pixels, up to which each direction is equally likely.
        flip: Whether to mirror left and right with probability 1/2.

    Returns:
        Images of the same shape and dtype.
    """
    crop_key, flip_key = jax.random.split(key)
    padded = jnp.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    # Corners of the crop in the padded image: 0 shifts by +pad, 2 pad by -pad.
    corners = jax.random.randint(crop_key, (len(images), 2), 0, 2 * pad + 1)
    # `dynamic_slice` takes indices of one dtype only.
    zero = jnp.zeros((), corners.dtype)

    def crop(image: Array, corner: Array) -> Array:
        return jax.lax.dynamic_slice(image, (corner[0], corner[1], zero), images.shape[1:])

    cropped = jax.vmap(crop)(padded, corners)
    if not flip:
        return cropped
    mirrored = jax.random.bernoulli(flip_key, shape=(len(images), 1, 1, 1))
    return jnp.where(mirrored, cropped[:, :, ::-1], cropped)
