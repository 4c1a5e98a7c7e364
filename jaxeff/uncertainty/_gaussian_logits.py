"""Uncertainty from Gaussian logits, as a single probabilistic forward pass returns them.

Logit sampling draws logits from their means and variances, which costs no further forward pass, and
treats the draws as those of a sampled network (Klein's thesis, section 8.3.1). For the tightest
budgets the variance itself is the epistemic score, with no sampling at all.

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

`temperature_scale` finds one number that logits, Gaussian or not, are divided by, so that a
classifier is as sure as it should be.
"""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff import core
from jaxeff.core import real_array, validate
from jaxeff.moment_propagation import Gaussian, JointGaussian, is_gaussian, is_joint_gaussian
from jaxeff.uncertainty._decomposition import Decomposition, decompose_logits, is_first

SMALLEST, LARGEST = 1e-3, 1e3
STEPS = 60
"""Halvings of the range of the logarithm: more than float64 can tell apart."""
GRID = 61
"""Temperatures that are compared first, ten to a decade."""
_POWER_STEPS = 2
"""Of 40 classes and variances of 8, what two leave of the sum is made up for by the softmax."""


@validate()
def sample_logits(
    key: PRNGKeyArray, logits: Gaussian | JointGaussian, samples: int = 100
) -> Float[Array, "samples *batch classes"]:
    """Draws logits, independent ones or joint ones.

    Sharp edge: the logits of a `Gaussian` are drawn independently. Where weight uncertainty moves
    several of them together, a sampled network has less mutual information than this; those of a
    `JointGaussian` (`moments(f, covariance=True)`) are drawn together.

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

    Sharp edge: it measures how far the logits may move, not whether that changes the class. Inputs
    that a network knows well excite it most, and their logits can vary most: for LeNet-5 after a
    few epochs of SVI on MNIST it told MNIST from Fashion-MNIST no better than chance or the wrong
    way round (AUROC 0.04 to 0.57, depending on the prior), where the mutual information of drawn
    logits separated them well (0.97 to 0.99). Validate it before relying on it.

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

    The probability of a class is a sigmoid of u_k = z_k - logsumexp of the other logits. With S
    their covariance and w the softmax of the others' means, u_k is taken as Gaussian, the mean of
    its sigmoid is MacKay's, and the power of all of them is taken at which they sum to one:

    ```text
    c        = sum_i w_i S_ii - w^T S w
    E[u_k]   = m_k - logsumexp of other m - c / 2 / sqrt(1 + pi / 8 c)
    Var[u_k] = (e_k - w)^T S (e_k - w)
    p_k      = sigmoid(E[u_k] / sqrt(1 + pi / 8 Var[u_k]))^a,  sum_k p_k = 1
    ```

    What all logits of a `JointGaussian` have in common cancels, as in the softmax itself. No key is
    needed, so that it can be deployed; logits that aren't Gaussian stay as they are. MacKay, "The
    Evidence Framework Applied to Classification Networks", Neural Computation 4 (1992).
    """
    if not (is_gaussian(logits) or is_joint_gaussian(logits)):
        return logits
    # Masked classes have no part in any sum, and derivatives meet no infinity.
    there = ~jnp.isneginf(logits.mean)
    mean, var = jnp.where(there, logits.mean, 0), jnp.where(there, logits.var, 0)

    times_cov = _product_with_covariance(logits, there)
    log_probs = jax.nn.log_softmax(mean, where=there, axis=-1)
    probs, first = jnp.exp(log_probs), is_first(log_probs)
    # w of a class is p without it. The most probable class may be all of p but for rounding, so its
    # others are a softmax of their own; a class that is alone has any odds, and is scaled to one.
    left_out = jnp.where(first, 0, probs)
    beside = there & (~first | (there.sum(-1, keepdims=True) < 2))
    beside_first = jax.nn.softmax(mean, where=beside, axis=-1)
    log_beside = jax.nn.logsumexp(mean, where=beside, axis=-1, keepdims=True)
    log_odds = jnp.where(first, mean - log_beside, log_probs - jnp.log1p(-left_out))
    log_odds = jnp.where(there, log_odds, 0)

    def of_others(value: Callable[[Array], Array]) -> Array:
        return jnp.where(first, value(beside_first), value(probs))

    rest = 1 - left_out
    with_others = (of_others(times_cov) - left_out * var) / rest
    among_others = (
        of_others(lambda w: (w * times_cov(w)).sum(-1, keepdims=True))
        - 2 * left_out * of_others(times_cov)
        + left_out**2 * var
    ) / rest**2
    within_others = (of_others(lambda w: (w * var).sum(-1, keepdims=True)) - left_out * var) / rest
    spread = jnp.maximum(within_others - among_others, 0)
    variance = jnp.maximum(var - 2 * with_others + among_others, 0)
    margin = _moderated(log_odds - _moderated(spread / 2, spread), variance)
    return _summing_to_one(jax.nn.log_sigmoid(margin), there, first, beside)


def _moderated(mean: Array, variance: Array) -> Array:
    """Divides a Gaussian logit's mean so that its sigmoid is the mean of the sigmoid."""
    # pi / 8 makes the slopes of sigmoid and probit equal at zero.
    return mean / jnp.sqrt(1 + np.pi / 8 * variance)


def _summing_to_one(log_each: Array, there: Array, first: Array, beside: Array) -> Array:
    """Raises probabilities, whose logarithms are given and returned, to the power of a sum of one.

    `there` are the classes that aren't masked, `first` the most probable one, `beside` the others.
    """
    # Newton's steps. The excess is small where one class is sure, so one minus its probability
    # isn't taken of rounded numbers.
    power: Any = 1.0
    for _ in range(_POWER_STEPS):
        each = jnp.exp(power * log_each)
        of_first = jnp.where(first, jnp.expm1(power * log_each), 0).sum(-1, keepdims=True)
        excess = jnp.where(beside, each, 0).sum(-1, keepdims=True) + of_first
        falls = jnp.where(there, -each * log_each, 0).sum(-1, keepdims=True)
        power += excess / jnp.maximum(falls, jnp.finfo(falls.dtype).eps ** 2)
    return jnp.where(there, power * log_each, -jnp.inf)


def _check(where: str, logits: Any) -> None:
    if not (is_gaussian(logits) or is_joint_gaussian(logits)):
        raise TypeError(
            f"{where}: logits must be a Gaussian, as jaxeff.moments(f) returns them, not a "
            f"{type(logits).__name__}; samples of logits go to decompose_logits"
        )


def _product_with_covariance(logits: Any, there: Array) -> Callable[[Array], Array]:
    """Makes the product of weights with the covariance of the classes that are there."""
    if is_gaussian(logits):
        var = jnp.where(there, logits.var, 0)
        return lambda weights: var * weights
    # Rows and columns of masked classes are zero, so that they add nothing.
    both = there[..., :, None] & there[..., None, :]
    cov = jnp.where(both, logits.cov, 0)
    return lambda weights: jnp.einsum("...ij,...j->...i", cov, weights)


class CalibrationWarning(UserWarning):
    """Held-out examples don't tell what was to be found: the message says why, and the way out.

    Labels that the logits separate without an error have no best temperature; it stops at
    `SMALLEST`, labels that are worse than chance at `LARGEST`, and where all classes have the same
    logit it is 1. Inside of `jit`, where values are unknown, nothing is said.
    """


@core.register_setting
class Temperature(core.Setting):
    """What logits are divided by; a leaf, so that it can be swept or learnt.

    Attributes:
        value: Above one makes predictions less sure, below one surer.
    """

    value: core.Positive = 1.0


@core.validate(logits=real_outputs)
def temperature_scale(
    logits: Float[Array, "batch classes"] | Gaussian, labels: Int[Array, " batch"]
) -> Temperature:
    """Finds the temperature of the smallest negative log-likelihood; jits and vmaps.

    Guo et al. 2017 (arXiv 1706.04599), section 4.2. The most probable class stays what it is.
    Logits of minus infinity, as of classes that are masked, stay out of it.

    ```python
    from jaxeff.nn import small_classifier
    from jaxeff.uncertainty import temperature_scale

    f, params, (x, y) = small_classifier()
    y = f(params, x).argmax(-1).at[::4].set(0)           # a network that is mostly right
    temperature = temperature_scale(f(params, x), y)     # on examples that were held out
    ```

    Args:
        logits: Logits of held-out examples, or Gaussian ones, whose likelihood is the probit
            approximation's.
        labels: Their classes.

    Returns:
        The temperature; NaN inside of `jit` where the likelihood is no number.

    Raises:
        TypeError: The logits are no array of two axes or Gaussian, or the labels no integers.
        ValueError: A label is out of range, there are no examples, or the likelihood of some is no
            number: logits are NaN or infinite, or minus infinity at the label.

    Warns:
        CalibrationWarning: No temperature is the best one, or it lies outside the range.
    """
    is_random = is_gaussian(logits) or is_joint_gaussian(logits)
    mean: Any = logits.mean if is_random else logits
    _check_held_out(mean, labels)
    rows, dtype = jnp.asarray(labels)[:, None], jnp.result_type(mean)
    mean = core.widened(mean)  # in 16 bits slopes of many examples round off
    wide = mean.dtype
    # What is masked weighs nothing at any temperature, but its derivative would be 0 times
    # infinity: it is taken out before anything is computed of it.
    there = ~jnp.isneginf(mean)
    kept: Any = jnp.where(there, mean, 0)
    if is_random:
        kept = Gaussian(kept, jnp.where(there, core.widened(logits.var), 0))

    def nll(log_temperature: Array) -> Array:
        scaled = probit_logits(_divided(kept, jnp.exp(log_temperature)))
        log_probs = jax.nn.log_softmax(scaled, where=there, axis=-1)
        return -jnp.take_along_axis(log_probs, rows, axis=-1)[:, 0]

    value, is_smallest, is_largest = _minimised(lambda log: nll(log).mean(), wide)
    largest, smallest = (jnp.where(there, mean, end) for end in (-jnp.inf, jnp.inf))
    is_constant = (largest.max(-1) <= smallest.min(-1)).all()
    unknown = ~jnp.isfinite(nll(jnp.zeros((), wide)))
    value = jnp.where(unknown.any(), jnp.nan, jnp.where(is_constant, 1, value)).astype(dtype)
    if core.is_concrete(value):
        _say(int(unknown.sum()), bool(is_constant), bool(is_smallest), bool(is_largest))
    return Temperature(value)


def _check_held_out(logits: Any, labels: Any) -> None:
    if np.ndim(logits) != 2 or not jnp.issubdtype(jnp.result_type(logits), jnp.floating):
        raise TypeError("temperature_scale: logits must be floating-point [batch, classes]")
    if not len(logits):
        raise ValueError("temperature_scale: there are no examples")
    core.warn_of_probs("temperature_scale: logits", logits)
    core.check_labels("temperature_scale: labels", labels, logits.shape[-1], logits.shape[:-1])


def _minimised(loss: Callable[[Array], Array], dtype: Any) -> tuple[Array, Array, Array]:
    """Finds the temperature of the smallest loss, which is a function of its logarithm.

    Returns it, and whether it is at the lower or the upper end of the range.
    """
    slope = jax.grad(loss)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        falling = slope(middle) < 0
        return jnp.where(falling, middle, low), jnp.where(falling, high, middle)

    # Of logits the likelihood is convex in 1 / T. Of Gaussian ones it flattens where variances are
    # far above one, so a grid finds the basin, and the sign of the slope its bottom.
    grid = jnp.linspace(jnp.log(SMALLEST), jnp.log(LARGEST), GRID, dtype=dtype)
    losses = jax.lax.map(loss, grid)
    best, least = losses.argmin(), losses.min()
    ends = grid[jnp.maximum(best - 1, 0)], grid[jnp.minimum(best + 1, GRID - 1)]
    low, high = jax.lax.fori_loop(0, STEPS, halve, ends)
    value = jnp.exp((low + high) / 2)
    is_smallest = (slope(grid[0]) >= 0) & (losses[0] <= least)
    is_largest = (slope(grid[-1]) <= 0) & (losses[-1] <= least)
    value = jnp.where(is_smallest, SMALLEST, jnp.where(is_largest, LARGEST, value))
    return value, is_smallest, is_largest


def _say(unknown: int, is_constant: bool, is_smallest: bool, is_largest: bool) -> None:
    """Refuses or warns of what has no best temperature."""
    if unknown:
        raise ValueError(
            f"temperature_scale: the likelihood of {unknown} examples is no number: their logits "
            "hold NaN or infinity, or minus infinity at the label; leave them out, or mend them"
        )
    way_out = "; give more held-out examples, or take Temperature(1.0)"
    if is_constant:
        text = "all classes have the same logit, so that every temperature is as good; it is 1"
    elif is_smallest:
        text = f"the labels are those of the largest logits, so that it stopped at {SMALLEST:g}"
        text += way_out
    elif is_largest:
        text = f"the logits say less than nothing of the labels, so that it stopped at {LARGEST:g}"
        text += "; see that labels and logits are of the same examples"
    else:
        return
    warnings.warn(f"temperature_scale: {text}.", CalibrationWarning, stacklevel=4)


@core.validate(f=core.function_of_form("f(*args)"), temperature=core.instance_of(Temperature))
def tempered(f: Callable[..., Any], temperature: Temperature) -> Callable[..., Any]:
    """Divides a function's logits by a temperature.

    ```python
    import jaxeff
    from jaxeff.nn import small_classifier
    from jaxeff.uncertainty import Temperature, tempered

    f, params, (x, y) = small_classifier()
    g = tempered(f, Temperature(2.0))                    # or of jaxeff.moments(f)
    ```

    Args:
        f: A pure function such as ``f(params, x)`` or ``jaxeff.moments(f)``.
        temperature: What `temperature_scale` found.

    Returns:
        A function of the same arguments: logits, or Gaussian ones whose variance is divided by the
        square.
    """

    def g(*args: Any, **kwargs: Any) -> Any:
        return _divided(f(*args, **kwargs), temperature.value)

    return g


def _divided(logits: Any, temperature: Any) -> Any:
    if is_gaussian(logits):
        return Gaussian(logits.mean / temperature, logits.var / temperature**2)
    if is_joint_gaussian(logits):
        return JointGaussian(logits.mean / temperature, logits.cov / temperature**2)
    return logits / temperature
