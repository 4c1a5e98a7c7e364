"""What is left beside a class: one minus its probability, where that rounds to one.

In float32 the probability of a sure class is 1, and one minus it 0, whatever the others have.
Summed over the others it keeps its digits, and inputs of sure networks their order.
"""

import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float


def is_first(log_probs: Float[Array, "*batch classes"]) -> Array:
    """Tells which class is the most probable; of equals the first."""
    places = jnp.arange(log_probs.shape[-1]).reshape(*[1] * (log_probs.ndim - 1), -1)
    return places == log_probs.argmax(-1, keepdims=True)


def log_complement(log_probs: Float[Array, "*batch classes"]) -> Float[Array, "*batch classes"]:
    """Computes `log(1 - p)` of each class."""
    first = is_first(log_probs)
    beside_first = logsumexp(jnp.where(first, -jnp.inf, log_probs), axis=-1, keepdims=True)
    # Any other class has half of the probability at most.
    beside_others = jnp.log1p(-jnp.exp(jnp.where(first, -jnp.inf, log_probs)))
    return jnp.where(first, beside_first, beside_others)
