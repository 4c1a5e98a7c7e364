"""The epistemic part of Gaussian logits in closed form: no draws, no key, so it deploys.

```python
import jax, jaxeff
from jaxeff.nn import small_classifier
from jaxeff.uncertainty import moment_information

f, params, (x, y) = small_classifier()
posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
scores = moment_information(jaxeff.moments(f)(posterior, x))
```
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import validate
from jaxeff.moment_propagation import Gaussian, JointGaussian, is_gaussian, is_joint_gaussian
from jaxeff.uncertainty._complement import log_complement


def gaussian_logits(where: str, value: Any) -> None:
    """Checks for Gaussian logits."""
    if not (is_gaussian(value) or is_joint_gaussian(value)):
        raise TypeError(
            f"{where} must be a Gaussian, as jaxeff.moments(f) returns them, not a "
            f"{type(value).__name__}"
        )


@validate(logits=gaussian_logits)
def moment_information(logits: Gaussian | JointGaussian) -> Float[Array, "*batch"]:
    """Computes the mutual information of class and weights to first order in the variances.

    To second order in the logits' deviations d, the divergence between their softmax and that of
    their mean, p, is `1/2 (sum p d^2 - (sum p d)^2)`; its mean is
    `1/2 (sum p var - p^T cov p)`, for independent logits `1/2 sum p (1 - p) var`. Where variances
    are large it goes on growing, while mutual information ends at the logarithm of the classes.

    Args:
        logits: Means and variances, `[*batch, classes]`.

    Returns:
        One score per input, in nats.
    """
    log_probs = jax.nn.log_softmax(logits.mean)
    probs = jnp.exp(log_probs)
    if isinstance(logits, JointGaussian):
        # The same as a sum over pairs of how far two logits vary apart: where one class has all
        # probability, both terms above are its variance.
        var = logits.var
        apart = var[..., :, None] + var[..., None, :] - 2 * logits.cov
        return jnp.einsum("...c,...cd,...d->...", probs, apart, probs) / 4
    others = jnp.exp(log_complement(log_probs))
    return (probs * others * logits.var).sum(-1) / 2
