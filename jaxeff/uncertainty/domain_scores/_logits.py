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

from jaxeff.core import number, positive, real_array, static_integer, validate

LOGITS = real_array(2, nan=True)


@validate(logits=LOGITS)
def msp(logits: Float[Array, "batch classes"]) -> Float[Array, " batch"]:
    """Computes minus the maximum softmax probability.

    Hendrycks and Gimpel, ICLR 2017, arXiv 1610.02136.

    Args:
        logits: Logits of each input.
    """
    return -jax.nn.softmax(logits).max(-1)


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
    probs = jnp.sort(jax.nn.softmax(logits), axis=-1)[:, -top:]
    return (probs**gamma * (1 - probs) ** gamma).sum(-1)
