"""Predictions of a sampled network: draw weights from a posterior, run the function with each.

Sharp edge: memory grows with ``chunk`` times the batch. A convolution with another kernel for each
sample is also slow on a CPU, so for large batches one sample at a time (the default) is faster as
well; for a handful of inputs raise ``chunk``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxeff.bayes.prior import named_leaves
from jaxeff.moments import is_gaussian


def sample(key: PRNGKeyArray, posterior: Any, n: int) -> Any:
    """Draw weights.

    Args:
        key: Random key.
        posterior: Pytree of `Gaussian`; a leaf that is a plain array is the same in each draw.
        n: Number of draws.

    Returns:
        Pytree of arrays with the posterior's structure and a leading axis of ``n``. Draw ``i`` is
        what `predict` uses for its sample ``i``, given the same key and ``n``.
    """
    return jax.vmap(lambda k: draw(k, posterior))(jax.random.split(key, n))


def draw(key: PRNGKeyArray, posterior: Any) -> Any:
    """Draw one set of weights.

    Args:
        key: Random key.
        posterior: Pytree of `Gaussian` and plain arrays.

    Returns:
        Pytree of arrays with the posterior's structure.
    """
    leaves, treedef = jax.tree.flatten(posterior, is_leaf=is_gaussian)
    keys = jax.random.split(key, max(len(leaves), 1))
    drawn = [
        leaf.sample(k) if is_gaussian(leaf) else jnp.asarray(leaf)
        for k, leaf in zip(keys, leaves, strict=False)
    ]
    return jax.tree.unflatten(treedef, drawn)


def predict(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    posterior: Any,
    *args: Any,
    samples: int = 30,
    chunk: int = 1,
) -> Any:
    """Outputs of ``f`` under weights drawn from a posterior.

    Compiled once for each ``f``, shape and number of samples.

    Args:
        key: Random key.
        f: ``f(params, *args)``; hashable, as every function is.
        posterior: Pytree of `Gaussian` with the structure of the parameters.
        *args: Inputs, passed on to ``f``.
        samples: Number of weight draws; each one is used for all inputs.
        chunk: Weight draws evaluated together (vmapped); the chunks run one after another.

    Returns:
        The outputs of ``f`` with a leading axis: ``[samples, batch, classes]`` for a classifier.

    Raises:
        TypeError: The posterior holds no `Gaussian` at all.
        ValueError: ``samples`` or ``chunk`` is below 1, or ``f`` refuses the weights because the
            posterior belongs to another model.
    """
    if samples < 1 or chunk < 1:
        raise ValueError(f"samples and chunk must be at least 1, not {samples} and {chunk}")
    if not any(is_gaussian(leaf) for leaf in jax.tree.leaves(posterior, is_leaf=is_gaussian)):
        raise TypeError(
            "the posterior holds no Gaussian: pass SVIResult.posterior (not the result itself, "
            "and not a pytree of arrays)"
        )
    return _predict(key, posterior, args, f=f, samples=samples, chunk=min(chunk, samples))


@partial(jax.jit, static_argnames=("f", "samples", "chunk"))
def _predict(
    key: PRNGKeyArray,
    posterior: Any,
    args: tuple[Any, ...],
    *,
    f: Callable[..., Any],
    samples: int,
    chunk: int,
) -> Any:
    keys = jax.random.split(key, samples)
    return jax.lax.map(lambda k: f(draw(k, posterior), *args), keys, batch_size=chunk)


def check_posterior(posterior: Any, params: Any) -> None:
    """Hold a posterior to the parameters of a model.

    Args:
        posterior: Pytree of `Gaussian`.
        params: The model's parameters, or their ``jax.ShapeDtypeStruct``.

    Raises:
        ValueError: A parameter is missing, unexpected or of another shape; its path is named.
        TypeError: A leaf is not a `Gaussian`.
    """
    given, expected = named_leaves(posterior, is_leaf=is_gaussian), named_leaves(params)
    for path in [*expected, *given]:
        if path not in given:
            raise ValueError(f"the posterior is of another model: it has no {path}")
        if path not in expected:
            raise ValueError(f"the posterior is of another model: the model has no {path}")
        if not is_gaussian(given[path]):
            raise TypeError(f"the posterior's {path} is no Gaussian but {type(given[path])}")
        if given[path].shape != jnp.shape(expected[path]):
            raise ValueError(
                f"the posterior is of another model: its {path} has shape {given[path].shape}, "
                f"the model's {jnp.shape(expected[path])}"
            )
