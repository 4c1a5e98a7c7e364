"""Out-of-domain scores of logits alone: they need nothing but a trained classifier.

```python
import jax.numpy as jnp
from jaxeff.uncertainty import auroc, energy, generalized_entropy, max_logit, msp

inside, outside = jnp.array([[5.0, 0.0], [0.0, 4.0]]), jnp.array([[1.0, 0.5], [0.2, 0.0]])
auroc(energy(inside), energy(outside))               # higher is out of domain
msp(inside), max_logit(inside), generalized_entropy(inside, gamma=0.1)
```

All jit, vmap and deploy. The literature often has them with the other sign.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from jaxeff.core import number, positive, real_array, static_integer, validate, widened
from jaxeff.uncertainty._complement import log_complement

LOGITS = real_array(2, nan=True)


@validate(logits=LOGITS)
def msp(logits: Float[Array, "batch classes"]) -> Float[Array, " batch"]:
    """Computes the log-odds against the most probable class, `log((1 - p) / p)`.

    Its order is that of minus the maximum softmax probability, which is the same number, -1, for
    all inputs that a network is sure of; `jax.nn.sigmoid` of it is one minus that probability.

    Hendrycks and Gimpel, ICLR 2017, arXiv 1610.02136.

    Args:
        logits: Logits of each input.
    """
    log_probs = jax.nn.log_softmax(widened(logits))
    at = log_probs.argmax(-1, keepdims=True)
    return jnp.take_along_axis(log_complement(log_probs) - log_probs, at, axis=-1)[:, 0]


@validate(logits=LOGITS)
def max_logit(logits: Float[Array, "batch classes"]) -> Float[Array, " batch"]:
    """Computes minus the largest logit.

    Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", ICML 2022,
    arXiv 1911.11132.

    Args:
        logits: Logits of each input.
    """
    return -logits.max(-1)


@validate(logits=LOGITS, temperature=positive)
def energy(
    logits: Float[Array, "batch classes"], temperature: float | Float[Array, ""] = 1.0
) -> Float[Array, " batch"]:
    """Computes the free energy, ``-T logsumexp(logits / T)``.

    Liu et al., "Energy-based Out-of-distribution Detection", NeurIPS 2020, arXiv 2010.03759, eq. 4.

    Args:
        logits: Logits of each input.
        temperature: Near zero it is `max_logit`.
    """
    return -temperature * logsumexp(logits / temperature, axis=-1)


@validate(logits=LOGITS, gamma=number(0, 1, above=0, below=1), top=static_integer())
def generalized_entropy(
    logits: Float[Array, "batch classes"], gamma: float | Float[Array, ""] = 0.1, top: int = 100
) -> Float[Array, " batch"]:
    """Computes the generalized entropy (GEN) of the most probable classes.

    Liu, Lochman, Zach, "GEN: Pushing the Limits of Softmax-Based Out-of-Distribution Detection",
    CVPR 2023, eq. 4: ``sum p^gamma (1 - p)^gamma``.

    Args:
        logits: Logits of each input.
        gamma: The smaller, the more small probabilities count.
        top: Number of classes that count; all if there are fewer.
    """
    log_probs = jnp.sort(jax.nn.log_softmax(widened(logits)), axis=-1)
    # In logarithms: to the tenth power even a probability of 1e-10 counts .1.
    both = log_probs + log_complement(log_probs)
    return jnp.exp(gamma * both[:, -top:]).sum(-1)
