"""Likelihoods: from a network's outputs to the distribution of the targets.

A heteroscedastic Gaussian reads an *aleatoric head*: the network predicts its own noise level
(Kendall and Gal 2017, arXiv 1703.04977; Klein's thesis, section 7.4.1).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array, Float

from jaxeff.bayes.posteriors._prior import named_leaves
from jaxeff.core import check_examples, check_labels

Likelihood = str | Callable[[Any], dist.Distribution]


def resolve_likelihood(likelihood: Likelihood) -> Callable[[Any], dist.Distribution]:
    """Looks up a likelihood.

    Args:
        likelihood: ``"categorical"`` (outputs are logits, targets integer classes), ``"gaussian"``
            (see `heteroscedastic`), or a function from the outputs to a NumPyro distribution whose
            batch shape begins with the examples.

    Returns:
        A function from the outputs to a distribution of the targets.

    Raises:
        ValueError: The name is unknown.
    """
    if callable(likelihood):
        return likelihood
    named = {"categorical": _categorical, "gaussian": heteroscedastic}
    if likelihood in named:
        return named[likelihood]
    raise ValueError(
        f"unknown likelihood {likelihood!r}: use 'categorical', 'gaussian', or a function from the "
        "outputs to a NumPyro distribution, such as lambda mean: dist.Normal(mean, 0.1)"
    )


def carried_likelihood(*sources: Any) -> Likelihood | None:
    """Returns the likelihood of the first of posteriors or results that carries one."""
    found = (getattr(source, "likelihood", None) for source in sources)
    return next((each for each in found if each is not None), None)


def require_likelihood(where: str, given: Likelihood | None, *sources: Any) -> Likelihood:
    """Chooses the likelihood that was given, or that posteriors carry.

    Args:
        where: Name of the function in error messages.
        given: Likelihood that the caller named, if any.
        sources: Posteriors or results of an inference, which may carry one.

    Raises:
        ValueError: There is none, or the one given contradicts the one carried.
    """
    carried = carried_likelihood(*sources)
    if given is None and carried is None:
        raise ValueError(
            f"{where}: say what f's outputs mean, likelihood='categorical' (logits) or 'gaussian' "
            "(mean and log-variance) or a function to a NumPyro distribution, or pass the result "
            "of an inference, which knows; arrays and pytrees of Gaussian don't"
        )
    if isinstance(given, str) and isinstance(carried, str) and given != carried:
        raise ValueError(
            f"{where}: likelihood={given!r} was given, but the posterior is one of a {carried!r} "
            "likelihood; leave it out"
        )
    likelihood = carried if given is None else given
    assert likelihood is not None
    return likelihood


def likelihood_name(likelihood: Likelihood) -> str:
    """Names a likelihood for a checkpoint, which can't see inside a function."""
    return likelihood if isinstance(likelihood, str) else "custom"


def heteroscedastic(outputs: Float[Array, "*batch two_k"]) -> dist.Normal:
    """Makes Gaussian targets whose variance the network predicts.

    Args:
        outputs: The first half of the last axis is the mean, the second half the logarithm of the
            variance (squared units of the target).

    Returns:
        A distribution over targets ``[*batch, k]``, or ``[*batch]`` where k is 1.

    Raises:
        ValueError: The number of outputs is odd.
    """
    if outputs.ndim < 2 or outputs.shape[-1] % 2:
        raise ValueError(
            "a Gaussian likelihood needs a mean and a log-variance for each target, so outputs "
            f"[batch, 2 * targets]; f gives {list(outputs.shape)}"
        )
    mean, log_var = jnp.split(outputs, 2, axis=-1)
    if outputs.shape[-1] == 2:
        mean, log_var = mean[..., 0], log_var[..., 0]
    # Halved first: the root of exp(log_var) would overflow, and lose its gradient, earlier.
    return dist.Normal(mean, jnp.exp(log_var / 2))


def _categorical(logits: Float[Array, "*batch classes"]) -> dist.Distribution:
    return dist.Categorical(logits=logits)


def check_data(params: Any, data: tuple[Any, ...]) -> None:
    """Checks parameters and data for what every inference needs.

    Args:
        params: The parameters to start from.
        data: ``(*inputs, targets)``.

    Raises:
        ValueError: There are no targets, or something isn't finite.
        TypeError: A parameter isn't of a floating-point dtype.
    """
    check_examples("data", data)
    for path, leaf in named_leaves(params).items():
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise TypeError(f"parameter {path} has dtype {jnp.result_type(leaf)}, not a float")
    for name, tree in (("parameter", params), ("data", data)):
        for path, leaf in named_leaves(tree).items():
            if jnp.issubdtype(jnp.result_type(leaf), jnp.floating) and not np.isfinite(leaf).all():
                raise ValueError(f"{name} {path} holds values that are NaN or infinite")


def check_likelihood(
    f: Callable[..., Any], params: Any, data: tuple[Any, ...], likelihood: Likelihood, batch: int
) -> None:
    """Checks a function and its likelihood on the data, at the starting parameters.

    Args:
        f: ``f(params, *inputs) -> outputs``.
        params: The parameters to start from.
        data: ``(*inputs, targets)``.
        likelihood: Likelihood, as `resolve_likelihood` takes it.
        batch: Number of examples to evaluate.

    Raises:
        ValueError: Outputs or likelihood are not finite, labels are out of range, or outputs and
            targets don't go together.
        TypeError: A label has the wrong dtype.
    """
    check_targets(f, params, data, likelihood)
    *inputs, targets = jax.tree.map(lambda leaf: jnp.asarray(leaf[:batch]), data)
    shape_of = resolve_likelihood(likelihood)

    # Compiled, since NumPyro's own checks of concrete numbers don't say where these came from.
    @jax.jit
    def evaluate(params: Any, inputs: Any, targets: Any) -> tuple[Any, Any]:
        outputs = f(params, *inputs)
        return outputs, shape_of(outputs).log_prob(targets)

    values, log_likelihood = evaluate(params, inputs, targets)
    for path, leaf in named_leaves(values).items():
        if bad := int((~jnp.isfinite(leaf)).sum()):
            raise ValueError(
                f"f gives {bad} of {leaf.size} values {path} that are NaN or infinite at the "
                "starting parameters, for the first batch of data"
            )
    if bad := int((~jnp.isfinite(log_likelihood)).sum()):
        raise ValueError(
            f"the likelihood of {bad} of the first {log_likelihood.size} targets is NaN or zero at "
            "the starting parameters: check the parameters of its distribution, and that the "
            "targets lie in its support"
        )


def check_targets(
    f: Callable[..., Any], params: Any, data: tuple[Any, ...], likelihood: Likelihood
) -> None:
    """Checks targets against what a function and its likelihood predict; runs neither.

    Args:
        f: ``f(params, *inputs) -> outputs``.
        params: The parameters.
        data: ``(*inputs, targets)``.
        likelihood: Likelihood, as `resolve_likelihood` takes it.

    Raises:
        ValueError: Labels are out of range, or outputs and targets don't go together.
        TypeError: A label has the wrong dtype.
    """
    *inputs, targets = data
    outputs = jax.eval_shape(f, params, *inputs)
    if likelihood == "categorical":
        check_labels(
            "the targets of a categorical likelihood", targets, outputs.shape[-1],
            positions=outputs.shape[1:-1],
        )  # fmt: skip
    _check_shapes(resolve_likelihood(likelihood), outputs, targets)


def _check_shapes(likelihood: Callable[..., Any], outputs: Any, targets: Any) -> None:
    """Refuses targets of another shape, as ``[n, 1]`` and ``[n]`` would silently broadcast."""
    # Noted while tracing: a distribution is no array that `eval_shape` could return.
    shape: list[tuple[int, ...]] = []

    def describe(outputs: Any) -> None:
        shape.append(likelihood(outputs).shape())

    jax.eval_shape(describe, outputs)
    if np.shape(targets) != shape[0]:
        raise ValueError(
            f"the likelihood is one of targets {list(shape[0])}, but {list(np.shape(targets))} "
            "came: make outputs and targets agree, one row per example"
        )
