"""Mean and standard deviation per channel of each training set, and the normalisation by them.

Sharp edge: an out-of-domain image must be normalised as the model's own training data was, so pass
the name of the *model's* data set: ``normalize(fashion.test_images, "mnist")``.

```python
import numpy as np

from jaxeff.data import normalize

white = np.full((1, 28, 28, 1), 255, np.uint8)
assert abs(normalize(white, "mnist") - (1 - 0.1307) / 0.3081).max() < 1e-5
```
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from jaxeff.core import real_array, string, validate
from jaxeff.data._errors import DataError

# Of the training pixels scaled to [0, 1]; MNIST and Fashion-MNIST rounded as the source has them.
CONSTANTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar-10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "digits": ((0.1558,), (0.2774,)),
}


@validate(images=real_array(nan=True, empty=True), name=string)
def normalize(
    images: UInt8[Array | np.ndarray, "*batch channels"]
    | Float[Array | np.ndarray, "*batch channels"],
    name: str,
) -> Float[Array, "*batch channels"]:
    """Scales images to zero mean and unit variance of a training set: ``(image - mean) / std``.

    Args:
        images: NHWC, or any shape with channels last. uint8 is taken as 0 to 255, a float dtype
            as already scaled to [0, 1].
        name: The data set whose constants to use.

    Returns:
        float32 (or the floating dtype that came in), the same shape.

    Raises:
        DataError: There are no constants for the name, or the channels don't fit.
        TypeError: The dtype is neither uint8 nor floating.
    """
    if name not in CONSTANTS:
        raise DataError(
            f"no normalisation constants for {name!r}, expected one of {sorted(CONSTANTS)}; "
            "pass the data set the model was trained on"
        )
    mean, std = CONSTANTS[name]
    if images.shape[-1:] != (len(mean),):
        raise DataError(
            f"{name}: expected images with {len(mean)} channel(s) last, found shape {images.shape}"
        )
    if images.dtype == np.uint8:
        scaled = jnp.asarray(images, jnp.float32) / 255
    elif jnp.issubdtype(images.dtype, jnp.floating):
        scaled = jnp.asarray(images)
    else:
        raise TypeError(f"expected uint8 or floating images, found {images.dtype}")
    # Ranks are made equal here: JAX's promotion of ranks may be refused.
    shape = (1,) * (scaled.ndim - 1) + (len(mean),)
    # In the dtype of the images, so that bfloat16 isn't promoted.
    centre, spread = (jnp.asarray(v, scaled.dtype).reshape(shape) for v in (mean, std))
    return (scaled - centre) / spread
