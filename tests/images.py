"""Convolutions of images in either order of axes, for the tests of several rooms."""

import jax
import jax.numpy as jnp
import numpy as np

FIRST, LAST = ("NCHW", "OIHW", "NCHW"), ("NHWC", "HWIO", "NHWC")
WIDTH = 16


def places_of(numbers):
    """Returns the axes of an image's rows and columns."""
    return (2, 3) if numbers is FIRST else (1, 2)


def convolutions(numbers):
    """A stem, and a residual block of a depthwise and a pointwise layer."""
    others = [axis for axis in range(4) if axis != (1 if numbers is FIRST else 3)]

    def layer(weights, x, stride=1, **more):
        y = jax.lax.conv_general_dilated(
            x, weights["kernel"], (stride, stride), "SAME", dimension_numbers=numbers, **more
        )
        return y + jnp.expand_dims(weights["bias"], others)

    def f(params, x):
        x = jax.nn.relu(layer(params["stem"], x, 2))
        y = jax.nn.relu(layer(params["depthwise"], x, feature_group_count=WIDTH))
        return jax.nn.relu(x + layer(params["pointwise"], y))

    return f


def convolution_parameters(rng):
    """Draws the parameters of `convolutions`, kernels as PyTorch has them."""

    def layer(*shape):
        kernel = rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))
        return {
            "kernel": kernel.astype("float32"),
            "bias": rng.normal(size=shape[0]).astype("float32"),
        }

    return {
        "stem": layer(WIDTH, 2, 3, 3),
        "depthwise": layer(WIDTH, 1, 3, 3),
        "pointwise": layer(WIDTH, WIDTH, 1, 1),
    }
