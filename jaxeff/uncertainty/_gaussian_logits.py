"""Uncertainty from Gaussian logits, as a single probabilistic forward pass returns them.

Logit sampling draws logits from their means and variances, which costs no further forward pass, and
treats the draws as those of a sampled network (Klein's thesis, section 8.3.1). For the tightest
budgets the variance itself is the epistemic score, with no sampling at all.

Sharp edges:

- The logits of a `Gaussian` are drawn independently. Where weight uncertainty moves several of them
  together, a sampled network has less mutual information than this; those of a `JointGaussian`
  (`moments(f, correlations="full")`) are drawn together.
- The raw variance measures how far the logits may move, not whether that changes the class.
  Inputs that a network knows well excite it most, and their logits can vary most: for LeNet-5
  after a few epochs of SVI on MNIST it told MNIST from Fashion-MNIST no better than chance or the
  wrong way round (AUROC 0.04 to 0.57, depending on the prior), where the mutual information of
  drawn logits separated them well (0.97 to 0.99). Validate it before relying on it.

```python
import jax

from jaxeff import Gaussian, moments
from jaxeff.nn import small_classifier
from jaxeff.uncertainty import from_gaussian, predict_probs, raw_variance, sample_logits

f, params, (x, y) = small_classifier(10)
posterior = jax.tree.map(lambda w: Gaussian(w, 0.01 * w**2), params)
key, logits = jax.random.key(0), moments(f)(posterior, x)             # one forward pass
assert sample_logits(key, logits, 100).shape == (100, 10, 10)
assert (from_gaussian(key, logits, 100).epistemic >= 0).all()
assert predict_probs(key, logits, 100).shape == (10, 10)
assert raw_variance(logits).shape == (10,)
```
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import real_array, validate
from jaxeff.moment_propagation import Gaussian, JointGaussian, is_gaussian, is_joint_gaussian
from jaxeff.uncertainty._decomposition import Decomposition, decompose_logits


@validate()
def sample_logits(
    key: PRNGKeyArray, logits: Gaussian | JointGaussian, samples: int = 100
) -> Float[Array, "samples *batch classes"]:
    """Draws logits, independent ones or joint ones.

    Args:
        key: Random key.
        logits: Means and variances, ``[*batch, classes]``.
        samples: Number of draws.

    Returns:
        Logits, for `decompose_logits` or `predictive_log_probs`.

    Raises:
        TypeError: They are neither a `Gaussian` nor a `JointGaussian`.
    """
    _check("sample_logits", logits)
    return logits.sample(key, (samples,))


@validate()
def from_gaussian(
    key: PRNGKeyArray, logits: Gaussian | JointGaussian, samples: int = 100
) -> Decomposition:
    """Computes total, aleatoric and epistemic uncertainty of Gaussian logits, by logit sampling.

    Args:
        key: Random key.
        logits: Means and variances, ``[*batch, classes]``.
        samples: Number of draws; the entropy of the mean is biased low with few.

    Returns:
        The three uncertainties of each input, in nats.
    """
    return decompose_logits(sample_logits(key, logits, samples))


@validate()
def predict_probs(
    key: PRNGKeyArray, logits: Gaussian | JointGaussian, samples: int = 100
) -> Float[Array, "*batch classes"]:
    """Computes the mean class probabilities under Gaussian logits, by logit sampling.

    Args:
        key: Random key.
        logits: Means and variances, ``[*batch, classes]``.
        samples: Number of draws.

    Returns:
        Class probabilities, as the scores of point predictions take them.
    """
    # The mean of softmaxes, not the softmax of the mean: the latter ignores the variances.
    return jax.nn.softmax(sample_logits(key, logits, samples)).mean(0)


def raw_variance(logits: Gaussian | JointGaussian) -> Float[Array, "*batch"]:
    """Averages the logit variances over classes: an epistemic score without sampling.

    Args:
        logits: Means and variances, ``[*batch, classes]``.

    Returns:
        One score per input, in squared logits; only its order means something.

    Raises:
        TypeError: They are no `Gaussian`.
    """
    _check("raw_variance", logits)
    return logits.var.mean(-1)


def real_outputs(where: str, value: Any) -> None:
    """Checks outputs of a network: an array, or a `Gaussian` or `JointGaussian`."""
    # NaN passes, so that it shows in the result.
    gaussian = is_gaussian(value) or is_joint_gaussian(value)
    mean = value.mean if gaussian else value
    real_array(nan=True)(where, mean)
    if not np.ndim(mean):
        raise TypeError(f"{where} must be an array with an axis of classes, not {value!r}.")


@validate(logits=real_outputs)
def probit_logits(logits: Any) -> Float[Array, "*batch classes"]:
    """Computes logits whose softmax approximates the mean softmax of Gaussian ones.

    ```python
    import jax, jax.numpy as jnp, jaxeff
    from jaxeff.uncertainty import probit_logits

    logits = jaxeff.Gaussian(jnp.array([[2.0, 0.0]]), jnp.ones((1, 2)))
    jax.nn.softmax(probit_logits(logits))            # less sure than softmax of the means
    ```

    No key is needed, so that it can be deployed; logits that aren't Gaussian stay as they are.
    MacKay, "The Evidence Framework Applied to Classification Networks", Neural Computation 4
    (1992).
    """
    if is_gaussian(logits) or is_joint_gaussian(logits):
        # pi / 8 makes the slopes of sigmoid and probit equal at zero.
        return logits.mean / jnp.sqrt(1 + np.pi / 8 * logits.var)
    return logits


def _check(where: str, logits: Any) -> None:
    if not (is_gaussian(logits) or is_joint_gaussian(logits)):
        raise TypeError(
            f"{where}: logits must be a Gaussian, as jaxeff.moments(f) returns them, not a "
            f"{type(logits).__name__}; samples of logits go to decompose_logits"
        )
