"""`corrupt`: the fifteen corruptions of CIFAR-C at five severities, drawn by code.

```python
import jax
from jaxeff import data

images = data.load("digits").test_images[:4] / 255.0
worse = data.corrupt(jax.random.key(0), images, "fog", severity=3)
every = {name: data.corrupt(jax.random.key(0), images, name, 5) for name in data.CORRUPTIONS}
```

Numbers are those of CIFAR-10-C, for images 32 pixels high; lengths grow and shrink with the height.

Sharp edges:
    Images aren't those of the published files: other random numbers, frost of ridged noise in the
    place of photographs, fog of noise at all scales instead of diamonds and squares, glass that
    copies neighbours instead of swapping them, and blurs whose borders go on as they end.
    Corrupt before normalizing.

References:
    Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations", ICLR 2019, arXiv 1903.12261.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import is_concrete, one_of, real_array, static_integer, validate
from jaxeff.data.corruptions import _blur as blur
from jaxeff.data.corruptions import _digital as digital
from jaxeff.data.corruptions import _noise as noise
from jaxeff.data.corruptions import _weather as weather

_FUNCTIONS: dict[str, Callable[[Array, Array, int], Array]] = {
    made.__name__: made
    for made in (
        noise.gaussian_noise, noise.shot_noise, noise.impulse_noise,
        blur.defocus_blur, blur.glass_blur, blur.motion_blur, blur.zoom_blur,
        weather.snow, weather.frost, weather.fog, weather.brightness,
        digital.contrast, digital.elastic_transform, digital.pixelate, digital.jpeg_compression,
    )
}  # fmt: skip

CORRUPTIONS = tuple(_FUNCTIONS)
"""Names of the corruptions, in the order of the paper."""


@validate(images=real_array(4), name=one_of(*CORRUPTIONS), severity=static_integer(1, 5))
def corrupt(
    key: PRNGKeyArray,
    images: Float[Array, "batch height width channels"],
    name: str,
    severity: int = 1,
) -> Float[Array, "batch height width channels"]:
    """Corrupts images; jits, with name and severity static.

    Args:
        key: Random key.
        images: Values of 0 to 1; one channel or three.
        name: One of `CORRUPTIONS`.
        severity: 1, hardly to be seen, to 5.

    Returns:
        Images of the same shape and dtype, of values from 0 to 1.

    Raises:
        ValueError: Values lie outside of 0 to 1, or the name or severity is none there is.
        TypeError: Images are no floating-point numbers.
    """
    images = _checked(images)
    made = _FUNCTIONS[name](key, images, severity - 1)
    return jnp.clip(made, 0, 1).astype(images.dtype)


def _checked(images: Any) -> jax.Array:
    if not jnp.issubdtype(jnp.result_type(images), jnp.floating):
        raise TypeError(
            f"corrupt: images must be floating-point numbers from 0 to 1, not "
            f"{jnp.result_type(images)}; divide bytes by 255"
        )
    if is_concrete(images) and (np.min(images) < 0 or np.max(images) > 1):
        raise ValueError(
            "corrupt: images must be numbers from 0 to 1; corrupt them before they are normalized"
        )
    return jnp.asarray(images)
