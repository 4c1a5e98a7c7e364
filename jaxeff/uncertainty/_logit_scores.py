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

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.moment_propagation import Gaussian, JointGaussian, is_gaussian, is_joint_gaussian
from jaxeff.uncertainty._decomposition import log_complement, log_odds_against

LOGITS = core.logits_array(2)


@core.validate(logits=LOGITS)
def msp(logits: Float[Array, "batch classes"]) -> Float[Array, " batch"]:
    """Computes the log-odds against the most probable class, `log((1 - p) / p)`.

    Its order is that of minus the maximum softmax probability, which is the same number, -1, for
    all inputs that a network is sure of; `jax.nn.sigmoid` of it is one minus that probability.

    Hendrycks and Gimpel, ICLR 2017, arXiv 1610.02136.

    Args:
        logits: Logits of each input.
    """
    wide = core.widened(logits)
    return log_odds_against(wide, wide.argmax(-1, keepdims=True))[:, 0]


@core.validate(logits=LOGITS)
def max_logit(logits: Float[Array, "batch classes"]) -> Float[Array, " batch"]:
    """Computes minus the largest logit.

    Hendrycks et al., "Scaling Out-of-Distribution Detection for Real-World Settings", ICML 2022,
    arXiv 1911.11132.

    Args:
        logits: Logits of each input.
    """
    return -logits.max(-1)


@core.validate(logits=LOGITS, temperature=core.positive)
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


@core.validate(logits=LOGITS, gamma=core.number(0, 1, above=0, below=1), top=core.static_integer())
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
    log_probs = jnp.sort(jax.nn.log_softmax(core.widened(logits)), axis=-1)
    # In logarithms: to the tenth power even a probability of 1e-10 counts .1.
    both = log_probs + log_complement(log_probs)
    return jnp.exp(gamma * both[:, -top:]).sum(-1)


def gaussian_logits(where: str, value: Any) -> None:
    """Checks for Gaussian logits."""
    if not (is_gaussian(value) or is_joint_gaussian(value)):
        raise TypeError(
            f"{where} must be a Gaussian, as jaxeff.moments(f) returns them, not a "
            f"{type(value).__name__}"
        )


@core.validate(logits=gaussian_logits)
def moment_information(logits: Gaussian | JointGaussian) -> Float[Array, "*batch"]:
    """Computes the mutual information of class and weights to first order in the variances.

    To second order in the logits' deviations d, the divergence between their softmax and that of
    their mean, p, is `1/2 (sum p d^2 - (sum p d)^2)`; its mean is
    `1/2 (sum p var - p^T cov p)`, for independent logits `1/2 sum p (1 - p) var`. Where variances
    are large it goes on growing, while mutual information ends at the logarithm of the classes.

    The epistemic part of Gaussian logits has a closed form: no draws, no key, so it deploys.

    ```python
    import jax, jaxeff
    from jaxeff.nn import small_classifier
    from jaxeff.uncertainty import moment_information

    f, params, (x, y) = small_classifier()
    posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
    scores = moment_information(jaxeff.moments(f)(posterior, x))
    ```

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


@core.validate(
    f=core.function_of_form("f(params, x)"), temperature=core.positive, step=core.non_negative
)
def odin(
    f: Callable[..., Float[Array, "batch classes"]],
    temperature: float | Float[Array, ""] = 1000.0,
    step: float | Float[Array, ""] = 0.0014,
) -> Callable[..., Float[Array, " batch"]]:
    """Makes a function score its inputs.

    Liang, Li, Srikant, "Enhancing The Reliability of Out-of-distribution Image Detection in
    Neural Networks", ICLR 2018, arXiv 1706.02690, eq. 1 and 2.

    ODIN is the softmax at a high temperature, of inputs moved towards their predicted class; it
    costs a pass backward to the inputs.

    ```python
    import jax
    from jaxeff.nn import small_classifier
    from jaxeff.uncertainty import odin

    f, params, (x, y) = small_classifier()
    scores = jax.jit(odin(f, temperature=1000.0, step=0.0014))(params, x)
    ```

    Args:
        f: A pure function such as `f(params, x)`, its inputs last.
        temperature: What logits are divided by.
        step: How far each entry of an input is moved, in units of the inputs.

    Returns:
        A function of the same arguments, with the score of `msp`. It jits, vmaps and deploys.
    """

    def g(*args: Any) -> Array:
        *others, x = args

        def loss(x: Array) -> Array:
            scaled = f(*others, x) / temperature
            # Of the predicted class, whose logit is the largest.
            return -jax.nn.log_softmax(scaled).max(-1).sum()

        # As the authors' code has it, a slope of zero counts as a rising one.
        direction = jnp.where(jax.grad(loss)(x) >= 0, 1.0, -1.0).astype(x.dtype)
        return msp(f(*others, x - step * direction) / temperature)

    return g
