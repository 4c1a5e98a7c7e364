"""Predictions that are Dirichlet distributions over class probabilities, as of evidential networks.

```python
import jax.numpy as jnp

from jaxeff.uncertainty import dirichlet_decomposition, dirichlet_probs, evidence

outputs = jnp.array([[20.0, -9.0, -9.0], [-9.0, -9.0, -9.0]])     # much evidence, and none
concentration = evidence(outputs) + 1
assert jnp.allclose(dirichlet_probs(concentration)[1], 1 / 3, atol=1e-3)
known, unknown = dirichlet_decomposition(concentration).epistemic
assert known < unknown
```

All have closed forms (Malinin and Gales 2018, arXiv:1802.10501), so one run of the network gives
what an ensemble's draws would. `jaxeff.training.evidential` trains such a network.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.scipy.special import digamma, entr
from jaxtyping import Array, Float

from jaxeff.core import function_of_form, positive, real_array, validate
from jaxeff.uncertainty._decomposition import Decomposition


@validate(outputs=real_array(nan=True), activation=function_of_form("f(outputs) -> evidence"))
def evidence(
    outputs: Float[Array, "*batch classes"],
    activation: Callable[[jax.Array], jax.Array] = jax.nn.softplus,
) -> Float[Array, "*batch classes"]:
    """Computes evidence from a network's outputs; plus one it is a concentration.

    Args:
        outputs: Outputs of the network.
        activation: What makes evidence of outputs, never below zero: that of the training.
    """
    return activation(outputs)


@validate(concentration=positive)
def dirichlet_probs(
    concentration: Float[Array, "*batch classes"],
) -> Float[Array, "*batch classes"]:
    """Computes the mean class probabilities.

    Args:
        concentration: The parameters of the distribution, above zero.
    """
    return concentration / concentration.sum(-1, keepdims=True)


@validate(concentration=positive)
def dirichlet_decomposition(concentration: Float[Array, "*batch classes"]) -> Decomposition:
    """Computes total, aleatoric and epistemic uncertainty, in nats.

    Args:
        concentration: The parameters of the distribution, above zero.

    Returns:
        The entropy of the mean, the mean of the entropy, and the mutual information of label and
        probabilities, for each input.
    """
    probs = dirichlet_probs(concentration)
    total = concentration.sum(-1, keepdims=True)
    entropies = probs * (digamma(total + 1) - digamma(concentration + 1))
    whole, aleatoric = entr(probs).sum(-1), entropies.sum(-1)
    return Decomposition(whole, aleatoric, jnp.maximum(whole - aleatoric, 0))
