"""The network that gets wrong data, and data that fit it."""

from typing import Any

import jax
import numpy as np
from jax import lax

from jaxeff.training import cross_entropy

N, CLASSES = 12, 3


def f(params: Any, x: Any) -> Any:
    """A convolution `fc1` of images `[batch, 4, 5, 1]` and a dense layer `fc2` of 3 classes."""
    numbers = ("NHWC", "HWIO", "NHWC")
    hidden = lax.conv_general_dilated(
        x, params["fc1"]["kernel"], (1, 1), "SAME", dimension_numbers=numbers
    )
    return jax.nn.relu(hidden).reshape(len(x), -1) @ params["fc2"]["kernel"]


X = np.asarray(jax.random.uniform(jax.random.key(1), (N, 4, 5, 1)))
Y = np.arange(N, dtype=np.int32) % CLASSES
PARAMS = {
    "fc1": {"kernel": jax.random.normal(jax.random.key(2), (3, 3, 1, 2))},
    "fc2": {"kernel": jax.random.normal(jax.random.key(3), (40, CLASSES)) / 6},
}
LOSS = cross_entropy(f)
