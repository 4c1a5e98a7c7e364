"""Checks of arrays and of data, for `takes`: their ranks, lengths and dtypes, and no NaN.

Values are looked at only where they are concrete, so that everything still traces.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core._arguments import check_examples, describe_value
from jaxeff.core._checks import Check, parameter_tree

READERS: set[Check] = set()
"""Checks that read what arrays hold: `takes` runs them last."""


def _reads(check: Check) -> Check:
    READERS.add(check)
    return check


def input_batches(where: str, value: Any) -> None:
    """Checks batches of inputs; those of a list or tuple one by one."""
    alone = isinstance(value, str | Mapping) or hasattr(value, "dtype")
    if alone or not hasattr(value, "__iter__"):
        raise TypeError(
            f"{where} must be a list of batches, or an iterator, not {describe_value(value)}."
        )
    # Anything else may be an iterator, which looking would use up.
    if isinstance(value, list | tuple):
        for i, one in enumerate(value):
            input_batch(f"{where}[{i}]", one)


def boolean_mask(where: str, value: Any) -> None:
    """Checks for an array of booleans with one axis."""
    if getattr(value, "dtype", None) != np.bool_ or np.ndim(value) != 1:
        raise TypeError(
            f"{where} must be an array of booleans of one axis, not {describe_value(value)}."
        )


@_reads
def input_batch(where: str, value: Any) -> None:
    """Checks a pytree of inputs: none of its arrays is empty, none holds NaN."""
    parameter_tree(where, value)
    for found, leaf in jax.tree_util.tree_leaves_with_path(value):
        name = jax.tree_util.keystr(found, simple=True, separator="/")
        _check_values(f"{where}{f', {name},' if name else ''}", leaf)


@_reads
def aligned_arrays(where: str, value: Any) -> None:
    """Checks for at least one array, all with the same number of examples; NaN is allowed."""
    parameter_tree(where, value)
    leaves = jax.tree.leaves(value)
    for leaf in leaves:
        _check_values(where, leaf, nan=True)
    if not leaves:
        raise ValueError(f"{where} holds no arrays.")
    _check_lengths(where, value)


def real_array(*ranks: int, nan: bool = False, empty: bool = False) -> Check:
    """Makes a check for an array of real numbers, or nested lists of them.

    Args:
        *ranks: Numbers of axes that it may have; any if none is given.
        nan: Whether it may hold NaN, which then shows in the result.
        empty: Whether it may have no entries.
    """

    def check(where: str, value: Any) -> None:
        shape, dtype = _shape_and_dtype(where, value)
        if not any(jnp.issubdtype(dtype, kind) for kind in (np.bool_, jnp.integer, jnp.floating)):
            raise TypeError(f"{where} must be an array of real numbers, not {dtype}{list(shape)}.")
        if ranks and len(shape) not in ranks:
            axes = " or ".join(map(str, ranks))
            raise ValueError(f"{where} must be an array of {axes} axes, not of shape {shape}.")
        _check_values(where, value, nan, empty)

    return _reads(check)


def integer_array(*ranks: int) -> Check:
    """Makes a check for an array of whole numbers."""
    numbers = real_array(*ranks)

    def check(where: str, value: Any) -> None:
        shape, dtype = _shape_and_dtype(where, value)
        if not jnp.issubdtype(dtype, jnp.integer):
            raise TypeError(f"{where} must be an array of integers, not {dtype}{list(shape)}.")
        numbers(where, value)

    return check


_LABELS = integer_array(1)


@_reads
def supervised_data(where: str, value: Any) -> None:
    """Checks the data of an inference, `(*inputs, targets)`, at least one example."""
    check_examples(where, value)
    input_batch(where, tuple(value))
    _check_lengths(where, value)


@_reads
def labelled_data(where: str, value: Any) -> None:
    """Checks a classifier's inputs and labels, at least one of each."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{where} must be a pair (inputs, labels), not {describe_value(value)}.")
    input_batch(where, tuple(value))
    _check_lengths(where, value)
    _LABELS(f"{where}, the labels,", value[1])
    if _concrete(value[1]) and (low := int(np.asarray(value[1]).min())) < 0:
        raise ValueError(f"{where}: labels must be 0 or more; found {low}.")


def _shape_and_dtype(where: str, value: Any) -> tuple[tuple[int, ...], Any]:
    try:
        told_shape = np.shape(value)
        dtype = value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype
    except (TypeError, ValueError):
        raise TypeError(
            f"{where} must be an array of numbers, not {describe_value(value)}."
        ) from None
    if value is None or isinstance(value, str):
        raise TypeError(f"{where} must be an array of numbers, not {describe_value(value)}.")
    return told_shape, dtype


def _check_lengths(where: str, value: Any) -> None:
    """Checks that arrays have as many examples as each other."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(value)]
    if any(not shape for shape in shapes) or len({shape[0] for shape in shapes}) > 1:
        raise ValueError(
            f"{where} must be arrays with the same number of examples on their first axes, not of "
            f"shapes {', '.join(map(str, shapes))}."
        )


def _check_values(where: str, value: Any, nan: bool = False, empty: bool = False) -> None:
    """Checks that an array has entries, and none that is NaN where they are concrete."""
    shape = np.shape(value)
    if not empty and 0 in shape:
        raise ValueError(f"{where} is empty: its shape is {shape}; give one example or more.")
    dtype = getattr(value, "dtype", None)
    if nan or not _concrete(value) or (dtype is not None and not _is_inexact(dtype)):
        return
    # NumPy's own, also while something else is traced.
    found = np.isnan(np.asarray(value, None if dtype is not None else float))
    if found.any():
        raise ValueError(f"{where} holds NaN, in {int(found.sum())} of {found.size} entries.")


def _is_inexact(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)


def _concrete(value: Any) -> bool:
    """Tells whether values are known: not traced, no mere shape, no other process's."""
    if isinstance(value, jax.Array):
        return not isinstance(value, jax.core.Tracer) and value.is_fully_addressable
    return not isinstance(value, jax.ShapeDtypeStruct)
