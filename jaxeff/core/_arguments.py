"""Checks of the arguments of public functions, with one clear error each.

Without them, a wrong argument fails deep inside, with an error that names nothing the caller
wrote. Checks look at types and shapes, and at values only where they are concrete, so that
everything still traces.
"""

import sys
from collections.abc import Iterable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

TOLERANCE = 0.01
"""Largest accepted deviation of a probability sum from 1: ten bfloat16 values round by less."""


def check_key(where: str, key: Any) -> None:
    """Checks a random key; an array of keys is one as well.

    Args:
        where: name in error messages, such as `fit: key`.
        key: A typed key, or old-style numbers of dtype uint32.

    Raises:
        TypeError: It is none.
    """
    dtype = getattr(key, "dtype", None)
    typed = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    # Old-style keys are two words for Threefry, four for RBG.
    if not typed and (dtype != jnp.uint32 or np.shape(key)[-1:] not in {(2,), (4,)}):
        raise TypeError(
            f"{where} must be a random key such as jax.random.key(0), not {describe_value(key)}"
        )


def check_function(where: str, f: Any, form: str = "f(params, *inputs)") -> None:
    """Checks a function.

    Args:
        where: name in error messages.
        f: A pure function.
        form: Form of the call, for the error message.

    Raises:
        TypeError: It is a model of a library, or cannot be called.
    """
    if (library := library_of(f)) is not None:
        raise TypeError(
            f"{where} must be a pure function {form}, not the {library} model {type(f).__name__}: "
            "f, params = jaxeff.functional(model) makes one"
        )
    if not callable(f):
        raise TypeError(f"{where} must be a pure function {form}, not {describe_value(f)}")


def check_params(where: str, params: Any) -> None:
    """Checks a pytree of parameters, which may hold shapes or random values as well.

    Args:
        where: name in error messages.
        params: Any pytree.

    Raises:
        TypeError: It is a model or the result of an inference, or a leaf is no array.
    """
    if (library := library_of(params)) is not None:
        raise TypeError(
            f"{where} must be a pytree of arrays, not the {library} model {type(params).__name__}: "
            "f, params = jaxeff.functional(model) takes them out of it"
        )
    if hasattr(params, "posterior") and hasattr(params, "likelihood"):  # of an inference
        raise TypeError(
            f"{where} is a {type(params).__name__}: pass its posterior, result.posterior, or "
            "the parameters themselves"
        )
    # A calibrated posterior is a pytree of Gaussians that moments take as it is.
    if hasattr(params, "to_gaussians") and not hasattr(params, "factors"):
        raise TypeError(
            f"{where} is a posterior ({type(params).__name__}), not a pytree of arrays: "
            "give jaxeff.bayes.to_gaussians(posterior), or call jaxeff.bayes.predict"
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not _is_array(leaf):
            name = jax.tree_util.keystr(path, simple=True, separator="/")
            way_out = ": give arrays, x.numpy()" if _is_tensor(leaf) else ""
            raise TypeError(
                f"{where} must be a pytree of arrays, but {name or 'it'} is "
                f"{describe_value(leaf)}{way_out}"
            )


def library_of(model: Any) -> str | None:
    """Names the library of a model that is none of pure functions; nothing is imported for it."""
    if isinstance(model, nnx.Module | nn.Module):
        return "Flax"
    kinds = ("torch.nn", "Module", "PyTorch"), ("keras", "Model", "Keras")
    return next((name for package, kind, name in kinds if is_of(model, package, kind)), None)


def is_of(model: Any, package: str, kind: str) -> bool:
    """Returns whether a value is of a class of a package that somebody has imported."""
    return package in sys.modules and isinstance(model, getattr(sys.modules[package], kind, ()))


def check_examples(where: str, data: Any) -> None:
    """Checks data of an inference: ``(*inputs, targets)``.

    Args:
        where: name in error messages.
        data: A tuple or list of arrays or pytrees of arrays.

    Raises:
        TypeError: It is something else, or a leaf is no array.
        ValueError: There are no targets.
    """
    if not isinstance(data, tuple | list):
        raise TypeError(
            f"{where} must be (*inputs, targets), such as (images, labels), "
            f"not {describe_value(data)}"
        )
    if len(data) < 2:
        raise ValueError(f"{where} must be (*inputs, targets), such as (images, labels)")
    check_params(where, tuple(data))


def check_labels(
    where: str,
    labels: Any,
    classes: int,
    batch: tuple[int, ...] | None = None,
    *,
    positions: tuple[int, ...] = (),
) -> None:
    """Checks integer class labels, their range where they are concrete.

    Args:
        where: What an error message calls them.
        labels: Integers, one for each example, or for each of its positions.
        classes: Number of classes.
        batch: The shape of the examples; one axis of any length, and `positions`, if None.
        positions: Axes behind that of the examples, such as the tokens of a text.

    Raises:
        TypeError: They have another dtype or shape.
        ValueError: One is out of range.
    """
    if not _is_array(labels) and not isinstance(labels, list | tuple):
        raise TypeError(f"{where} must be integer class labels, not {describe_value(labels)}")
    shape, dtype = np.shape(labels), jnp.result_type(labels)
    fits = bool(shape) and shape[1:] == positions if batch is None else shape == batch
    if not jnp.issubdtype(dtype, jnp.integer) or not fits:
        axes = ("examples", *positions) if batch is None else batch
        wanted = f"[{', '.join(map(str, axes))}]"
        raise TypeError(
            f"{where} must be integer class labels of shape {wanted}, not {dtype}{list(shape)}"
        )
    if isinstance(labels, jax.core.Tracer) or not np.size(labels):
        return
    values = np.asarray(labels)  # numpy's own, also while something else is traced
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= classes:
        raise ValueError(
            f"{where}: there are {classes} classes, so labels must be 0 to {classes - 1}; found "
            f"{low} to {high}"
        )


def check_probs(where: str, probs: Any, *, logs: bool = False) -> None:
    """Checks class probabilities on the last axis, or their logarithms; values where concrete.

    Args:
        where: What an error message calls them.
        probs: ``[..., classes]``; rows that hold NaN pass, so that it stays visible.
        logs: Whether they are logarithms.

    Raises:
        TypeError: They are no floating-point array.
        ValueError: Rows don't sum to one within `TOLERANCE`, or an entry lies outside 0 to 1.
    """
    way_out = (
        "jax.nn.log_softmax(logits), or predictive_log_probs of samples' logits"
        if logs
        else "jax.nn.softmax(logits), or jnp.exp(predictive_log_probs(logits)) of samples'"
    )
    kind = "log-probabilities" if logs else "probabilities"
    array = isinstance(probs, jax.Array | np.ndarray) and np.ndim(probs) > 0
    if not array or not jnp.issubdtype(probs.dtype, jnp.floating):
        raise TypeError(
            f"{where} must be an array of {kind}, not {describe_value(probs)}; {way_out}"
        )
    if not np.size(probs):
        raise ValueError(f"{where} is empty: its shape is {np.shape(probs)}")
    if isinstance(probs, jax.core.Tracer):
        return
    # In float64: sums of thousands of classes in bfloat16 would miss 1 by their own rounding.
    values = np.asarray(probs, np.float64)
    values = np.exp(values) if logs else values
    sums, low = values.sum(-1), values.min(-1, initial=0.0)
    # Comparisons with NaN are false, so rows that hold it pass and it shows in the result.
    wrong = (np.abs(sums - 1) > TOLERANCE) | (low < -TOLERANCE)
    if wrong.any():
        raise ValueError(
            f"{where} must be {kind}, but {int(wrong.sum())} of {wrong.size} rows don't sum to one "
            f"or hold negative entries (the first sums to {sums[wrong].ravel()[0]:.3g}); if they "
            f"are logits, give {way_out}"
        )


def check_scores(where: str, arrays: Iterable[tuple[str, Any]]) -> None:
    """Checks vectors of scores: one axis and at least one entry each.

    Raises:
        TypeError: One is something else.
    """
    for name, array in arrays:
        is_array = isinstance(array, jax.Array | np.ndarray)
        if not is_array or np.ndim(array) != 1 or not np.size(array):
            raise TypeError(
                f"{where}: {name} must be scores of shape [n], at least one, "
                f"not {describe_value(array)}"
            )


def _is_array(x: Any) -> bool:
    scalar = isinstance(x, bool | int | float | complex)
    if isinstance(x, np.ndarray):
        return x.dtype.kind not in "OSU"  # neither text nor objects
    # Classes such as `np.float32` have these attributes too, and are callable.
    described = hasattr(x, "shape") and hasattr(x, "dtype") and not callable(x)
    return scalar or (described and not _is_tensor(x))


def _is_tensor(x: Any) -> bool:
    return is_of(x, "torch", "Tensor")


def describe_value(x: Any) -> str:
    """Describes a value in a few words."""
    if x is None or isinstance(x, bool | int | float | str):
        return repr(x) if len(repr(x)) < 60 else f"a {type(x).__name__}"
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        kind = "" if isinstance(x, jax.Array | np.ndarray) else f"{type(x).__name__} "
        return f"{kind}{x.dtype}{list(x.shape)}"
    return f"a {type(x).__name__}"
