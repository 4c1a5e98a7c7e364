"""The activation functions compared in Bayesian networks by Klein's thesis, table 7.1, by name.

Names and default parameters are PyTorch's, so that rows of tables match. Sharp edges:

- ``Softmax``, ``Softmin`` and ``LogSoftmax`` act over the last axis, so a unit's output depends on
  the other units of its layer. All others are elementwise.
- ``PReLU`` has a slope to be learned or inferred: call `prelu` with it. Without one, it is where
  PyTorch starts (0.25).
- ``RReLU`` here is its evaluation form: the mean slope of PyTorch's U(1/8, 1/3). In training,
  PyTorch draws a slope per element and call, which is not a function of its input, and a
  likelihood made of it is not a fixed density.

```python
import jax.numpy as jnp

from jaxeff.nn import activation

assert activation("Hardshrink")(jnp.array([-2.0, 0.4, 1.0])).tolist() == [-2.0, 0.0, 1.0]
f = lambda params, x: activation("Softplus")(x @ params)     # chosen by a setting, for example
```
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import string, validate

Activation = Callable[[jax.Array], jax.Array]

PRELU_START = 0.25
RRELU_SLOPE = (1 / 8 + 1 / 3) / 2


def prelu(x: Float[Array, "*n"], slope: Float[Array, ""] | float = PRELU_START) -> Array:
    """Computes ReLU with a given slope below zero (He et al. 2015, arXiv 1502.01852)."""
    return jnp.where(x >= 0, x, slope * x)


def softshrink(x: Array, threshold: float = 0.5) -> Array:
    """Computes soft shrinkage, `sign(x) max(|x| - threshold, 0)`."""
    return jnp.sign(x) * jnp.maximum(jnp.abs(x) - threshold, 0)


def hardshrink(x: Array, threshold: float = 0.5) -> Array:
    """Computes hard shrinkage, x where |x| > threshold, else 0."""
    return jnp.where(jnp.abs(x) > threshold, x, 0)


def tanhshrink(x: Array) -> Array:
    """Computes tanh shrinkage, x - tanh(x)."""
    return x - jnp.tanh(x)


def gelu_exact(x: Array) -> Array:
    """Computes GELU without the tanh approximation, x Phi(x)."""
    # PyTorch's default; JAX's is the approximation.
    return jax.nn.gelu(x, approximate=False)


def softmin(x: Float[Array, "*n features"]) -> Array:
    """Computes the softmax of ``-x`` over the last axis."""
    return jax.nn.softmax(-x)


def _leaky(slope: float) -> Activation:
    return lambda x: jax.nn.leaky_relu(x, slope)


ACTIVATIONS: dict[str, Activation] = {
    "Cosine": jnp.cos,
    "Sine": jnp.sin,
    "Softshrink": softshrink,
    "Hardtanh": jax.nn.hard_tanh,
    "PReLU": prelu,
    "Tanh": jnp.tanh,
    "Hardswish": jax.nn.hard_swish,
    "Hardsigmoid": jax.nn.hard_sigmoid,
    "Softsign": jax.nn.soft_sign,
    "LeakyReLU": _leaky(0.01),
    "Mish": jax.nn.mish,
    "SELU": jax.nn.selu,
    "GELU": gelu_exact,
    "LogSigmoid": jax.nn.log_sigmoid,
    "LeakyReLU0.5": _leaky(0.5),
    "ReLU": jax.nn.relu,
    "Sigmoid": jax.nn.sigmoid,
    "Softplus": jax.nn.softplus,
    "ELU": jax.nn.elu,
    "CELU": jax.nn.celu,
    "SiLU": jax.nn.silu,
    "RReLU": _leaky(RRELU_SLOPE),
    "LogSoftmax": jax.nn.log_softmax,
    "Tanhshrink": tanhshrink,
    "Softmin": softmin,
    "Softmax": jax.nn.softmax,
    "Hardshrink": hardshrink,
}
"""In the order of Klein's thesis, table 7.1: by falling AUROC on the noisy sine."""


@validate(name=string)
def activation(name: str) -> Activation:
    """Finds an activation function.

    Raises:
        ValueError: There is none of this name; the message lists them.
    """
    if name not in ACTIVATIONS:
        raise ValueError(f"unknown activation {name!r}; there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
