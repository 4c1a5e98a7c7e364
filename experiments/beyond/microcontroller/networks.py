"""The four networks of MLPerf Tiny (arXiv 2106.07597), random, as integer functions.

Convolutions have biases and no batch norm, as they have once it is folded into them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
from flax import nnx

import jaxeff
from experiments.beyond.separable import Separable
from jaxeff.compression import Int, calibrate, fold_batch_norm, integer
from jaxeff.nn import MLP, ResNet8

SHAPES = {
    "keywords": (49, 10, 1),
    "images": (32, 32, 3),
    "anomalies": (640,),
    "wake_words": (96, 96, 3),
}
BITS = 8
_AUTOENCODER = (640, 128, 128, 128, 128, 8, 128, 128, 128, 128, 640)
_THREE = {"kernel_size": (3, 3)}
# Features, and the stride of the depthwise convolution before them.
_DS_CNN = ((64, 1),) * 4
_MOBILE_NET = (
    *((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2)),
    *((128, 1),) * 5,
    *((256, 2), (256, 1)),
)


def network(name: str) -> tuple[Callable[..., Any], Any]:
    """A network and its parameters, by the name of a row."""
    rngs = nnx.Rngs(0)
    if name == "anomalies":
        return jaxeff.functional(MLP(_AUTOENCODER, rngs=rngs))
    if name == "images":
        net = ResNet8(rngs=rngs)
        net.eval()
        f, params = jaxeff.functional(net)
        return fold_batch_norm(f, params, jax.numpy.ones((1, *SHAPES[name])))[:2]
    if name == "keywords":
        first = {"in_features": 1, "out_features": 64, "kernel_size": (10, 4), "strides": 2}
        return jaxeff.functional(Separable(first, _THREE, _DS_CNN, 12, rngs))
    first = {"in_features": 3, "out_features": 8, "kernel_size": (3, 3), "strides": 2}
    return jaxeff.functional(Separable(first, _THREE, _MOBILE_NET, 2, rngs))


@functools.cache
def in_codes(
    name: str, bits: int = BITS, requantize: Literal["float", "fixed"] = "float"
) -> tuple[Callable[..., Any], Any, jax.Array]:
    """A network in integers, its converted parameters and an input.

    Args:
        name: The network's.
        bits: Of weights; activations have eight.
        requantize: How sums become codes: by `"float"` factors or `"fixed"`, in whole numbers.
    """
    f, params = network(name)
    x = jax.random.normal(jax.random.key(1), (1, *SHAPES[name]))
    spec = calibrate(f, params, [x], {"*:linear": Int(bits, BITS)}).spec
    g = integer(f, spec, requantize=requantize)
    return g, g.convert(params, x), x
