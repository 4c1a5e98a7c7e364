"""Hard concrete gates: between 0 and 1, often exactly 0 or 1, and learnt by gradients.

For a location phi and uniform u,

```text
z = clip((ZETA - GAMMA) sigmoid((log(u / (1 - u)) + phi) / TAU) + GAMMA, 0, 1)
```

with TAU = 2/3, GAMMA = -0.1 and ZETA = 1.1 isn't zero with probability
sigmoid(phi - TAU log(-GAMMA / ZETA)).

Source: Louizos et al., "Learning Sparse Neural Networks through L0 Regularization",
arXiv:1712.01312, eqs. 10 to 13.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

TAU, GAMMA, ZETA = 2 / 3, -0.1, 1.1
_SHIFT = TAU * math.log(-GAMMA / ZETA)


def open_probability(phi: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes the probability that a gate isn't closed."""
    return jax.nn.sigmoid(phi - _SHIFT)


def gate_location(probability: float) -> float:
    """Computes the location of gates that aren't closed with a given probability."""
    return math.log(probability / (1 - probability)) + _SHIFT


def hard_concrete(key: PRNGKeyArray, phi: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Draws a gate for each location."""
    # Never zero, and by log1p: the logit is finite, and precise for small u.
    u = jax.random.uniform(key, phi.shape, phi.dtype, jnp.finfo(phi.dtype).tiny)
    s = jax.nn.sigmoid((jnp.log(u) - jnp.log1p(-u) + phi) / TAU)
    return jnp.clip(s * (ZETA - GAMMA) + GAMMA, 0, 1)


def deterministic_gates(phi: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Computes the gate at test time, without a draw (eq. 13)."""
    return jnp.clip(jax.nn.sigmoid(phi) * (ZETA - GAMMA) + GAMMA, 0, 1)
