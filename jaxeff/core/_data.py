"""What data are: a batch, its labels, a list of batches, scores, decided here for all rooms.

A batch is an array with its examples on the first axis, or a tuple of a function's arguments. Data
of a training are `(*inputs, targets)`, those of a classifier `(inputs, labels)`, labels one whole
number for each example. A list is several batches where a call takes several, and an argument that
is a list elsewhere; it is never an array: what holds numbers is refused with the way to make one.

An error names the argument, what came (dtype, shape, range) and what is wanted, in at most 500
letters; data that a function itself refuses are explained by `jaxeff.core._misfits`.

Sharp edges:
    Values are looked at where they are concrete alone, so that everything still traces.
    `-inf` passes: masks of attention hold it. NaN doesn't, but where a check says so.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core import _arguments as arguments
from jaxeff.core._arguments import describe_value

Check = Callable[[str, Any], None]

TOLERANCE = 0.01
"""Largest accepted deviation of a probability sum from 1: ten bfloat16 values round by less."""

FEW = 10
"""Labels that may well be of one class by chance."""

FAR = 16.0
"""Ratio of two scales that standardized data don't have: images of 0 to 255 have one above 60."""

READERS: set[Check] = set()
"""Checks that read what arrays hold: `validate` runs them last."""


class DataWarning(UserWarning):
    """Data that can be computed with, and are probably not what was meant."""


def _reads(check: Check) -> Check:
    READERS.add(check)
    return check


def unless(passes: Callable[[Any], bool], check: Check) -> Check:
    """Makes a check of what doesn't pass without one."""

    def held(where: str, value: Any) -> None:
        if not passes(value):
            check(where, value)

    return _reads(held) if check in READERS else held


def as_arguments(batch: Any) -> tuple[Any, ...]:
    """Returns a function's inputs as a tuple: a batch is one of them, or a tuple of all."""
    return batch if isinstance(batch, tuple) else (batch,)


def parameter_tree(where: str, value: Any) -> None:
    """Checks for a pytree of parameters."""
    if value is None:
        raise TypeError(f"{where} must be a pytree of arrays, not None.")
    arguments.check_params(where, value)


def input_batches(where: str, value: Any) -> None:
    """Checks batches of inputs; those of a list or tuple one by one."""
    alone = isinstance(value, str | Mapping) or hasattr(value, "dtype")
    if alone or not hasattr(value, "__iter__"):
        raise TypeError(
            f"{where} must be a list of batches, or an iterator, not {describe_value(value)}."
        )
    # Anything else may be an iterator, which looking would use up.
    if isinstance(value, list | tuple):
        _refuse_numbers(where, value)
        for i, one in enumerate(value):
            input_batch(f"{where}[{i}]", one)


def call_arguments(where: str, value: Any) -> None:
    """Checks the arguments of a call, `(params, *inputs)`, which may be shapes."""
    if not isinstance(value, tuple | list):
        raise TypeError(f"{where} must be a tuple of arguments, not {describe_value(value)}.")
    _refuse_numbers(where, value)
    for i, argument in enumerate(value):
        if argument is not None:
            parameter_tree(f"{where}[{i}]", argument)


def boolean_mask(where: str, value: Any) -> None:
    """Checks for an array of booleans with one axis."""
    if getattr(value, "dtype", None) != np.bool_ or np.ndim(value) != 1:
        raise TypeError(
            f"{where} must be an array of booleans of one axis, not {describe_value(value)}."
        )


@_reads
def input_batch(where: str, value: Any) -> None:
    """Checks a pytree of inputs: none of its arrays is empty, none holds NaN."""
    _refuse_numbers(where, value)
    parameter_tree(where, value)
    for path, leaf in jax.tree_util.tree_leaves_with_path(value):
        _check_values(f"{where}{jax.tree_util.keystr(path)}", leaf, infinite=False)


@_reads
def aligned_arrays(where: str, value: Any) -> None:
    """Checks for at least one array, all with the same number of examples; NaN is allowed."""
    _refuse_numbers(where, value)
    parameter_tree(where, value)
    leaves = jax.tree_util.tree_leaves_with_path(value)
    for path, leaf in leaves:
        _check_values(f"{where}{jax.tree_util.keystr(path)}", leaf, nan=True)
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


@_reads
def supervised_data(where: str, value: Any) -> None:
    """Checks the data of an inference, `(*inputs, targets)`, at least one example."""
    check_examples(where, value)
    _check_parts(where, value)
    _check_lengths(where, value)


@_reads
def labelled_data(where: str, value: Any) -> None:
    """Checks a classifier's inputs and labels, at least one of each."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise TypeError(f"{where} must be a pair (inputs, labels), not {describe_value(value)}.")
    _check_parts(where, value)
    if _is_labels(value[0]) and not _is_labels(value[1]):
        raise TypeError(
            f"{where} is ({', '.join(map(describe_value, value))}): labels and inputs are in each "
            "other's place; give (inputs, labels)."
        )
    _check_lengths(where, value)
    check_labels(f"{where}, the labels,", value[1], None)


def _check_parts(where: str, value: Sequence[Any]) -> None:
    """Checks inputs and targets one by one, so that none of them is missing."""
    for i, part in enumerate(value):
        input_batch(f"{where}[{i}]", part)


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
    _refuse_numbers(where, data)
    arguments.check_params(where, tuple(data))


def check_labels(
    where: str,
    labels: Any,
    classes: int | None,
    batch: tuple[int, ...] | None = None,
    *,
    positions: tuple[int, ...] = (),
) -> None:
    """Checks integer class labels, their range where they are concrete.

    Args:
        where: What an error message calls them.
        labels: Integers, one for each example, or for each of its positions.
        classes: Number of classes; None if only labels below zero are refused.
        batch: The shape of the examples; one axis of any length, and `positions`, if None.
        positions: Axes behind that of the examples, such as the tokens of a text.

    Raises:
        TypeError: They have another dtype or shape.
        ValueError: One is out of range.
    """
    if not arguments.is_array(labels) and not isinstance(labels, list | tuple):
        raise TypeError(f"{where} must be integer class labels, not {describe_value(labels)}")
    shape, dtype = _shape_and_dtype(where, labels)
    fits = bool(shape) and shape[1:] == positions if batch is None else shape == batch
    if not jnp.issubdtype(dtype, jnp.integer) or not fits:
        axes = ("examples", *positions) if batch is None else batch
        wanted = f"[{', '.join(map(str, axes))}]"
        raise TypeError(
            f"{where} must be integer class labels of shape {wanted}, not {dtype}{list(shape)}"
            f"{_way_to_labels(shape, dtype, len(axes))}"
        )
    if not _concrete(labels) or not np.size(labels):
        return
    values = np.asarray(labels)  # numpy's own, also while something else is traced
    low, high = int(values.min()), int(values.max())
    if classes is None and low < 0:
        raise ValueError(f"{where} must be 0 or more; found {low} to {high}")
    if classes is not None and (low < 0 or high >= classes):
        from_one = "; they count from 1: subtract 1" if (low, high) == (1, classes) else ""
        raise ValueError(
            f"{where}: there are {classes} classes, so labels must be 0 to {classes - 1}; found "
            f"{low} to {high}{from_one}"
        )


def warn_of_one_class(where: str, labels: Any) -> None:
    """Warns of labels that all are of one class: a training learns nothing else from them.

    Args:
        where: What the warning calls them.
        labels: Integers, which are looked at where they are concrete.
    """
    if not _is_labels(labels) or not _concrete(labels) or np.size(labels) < FEW:
        return
    values = np.asarray(labels)
    if (values == values[0]).all():
        warnings.warn(
            f"{where} all are {values[0]}, {values.size} times: nothing can be learnt or said of "
            "other classes; shuffle data before they are cut",
            DataWarning,
            stacklevel=3,
        )


def _way_to_labels(shape: tuple[int, ...], dtype: Any, rank: int) -> str:
    """Says how what came could become labels of a number of axes; "" if nothing is known."""
    if len(shape) == rank + 1 and shape[-1] == 1:
        return ": leave out the last axis, labels[..., 0]"
    if len(shape) == rank + 1 and shape[-1] > 1 and rank == 1:
        return ": if they are one-hot, give labels.argmax(-1)"
    if len(shape) == rank and jnp.issubdtype(dtype, jnp.integer):
        return ": one for each example"
    return ": if they are integers, give labels.astype(int)" if len(shape) == rank else ""


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
    if not logs and _surely_probs(np.asarray(probs)):
        return
    # In float64: sums of thousands of classes in bfloat16 would miss 1 by their own rounding.
    values = np.asarray(probs, np.float64)
    values = np.exp(values) if logs else values
    # Comparisons with NaN are false, so rows that hold it pass and it shows in the result.
    wrong = _misses_one(values)
    if wrong.any():
        raise ValueError(
            f"{where} must be {kind}, but {int(wrong.sum())} of {wrong.size} rows don't sum to one "
            f"or hold negative entries (the first sums to {values.sum(-1)[wrong].ravel()[0]:.3g}); "
            f"if they are logits, give {way_out}"
        )


def _surely_probs(values: np.ndarray) -> bool:
    """Tells of most probabilities that they are right, without a copy; false where unsure."""
    if values.dtype not in (np.float32, np.float64):
        return False
    # Both comparisons are false of NaN. A matrix product adds short rows faster than `sum`, and
    # rounds by far less than the half of the tolerance that is left to it.
    sums = values @ np.ones(values.shape[-1], values.dtype)
    return bool(values.min() >= -TOLERANCE and np.abs(sums - 1).max() <= TOLERANCE / 2)


def _misses_one(values: np.ndarray) -> np.ndarray:
    """Marks rows that are no probabilities."""
    sums, low = values.sum(-1), values.min(-1, initial=0.0)
    return (np.abs(sums - 1) > TOLERANCE) | (low < -TOLERANCE)


def warn_of_probs(where: str, logits: Any) -> None:
    """Warns of logits that are probabilities, where they are concrete.

    Args:
        where: What the warning calls them.
        logits: ``[..., classes]``.
    """
    if not _concrete(logits) or np.ndim(logits) < 1 or np.shape(logits)[-1] < 2:
        return
    values = np.asarray(logits, np.float64)
    if values.size and not _misses_one(values).any() and not np.isnan(values).any():
        warnings.warn(
            f"{where}: every row is positive and sums to one: these are probabilities, not "
            "logits; give what softmax was taken of, or jnp.log of them",
            DataWarning,
            stacklevel=2,
        )


def logits_array(*ranks: int) -> Check:
    """Makes a check for logits, which may hold NaN; it warns of probabilities in their place."""
    numbers = real_array(*ranks, nan=True)

    def check(where: str, value: Any) -> None:
        numbers(where, value)
        warn_of_probs(where, value)

    return _reads(check)


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


class Extent(NamedTuple):
    """The range of an array of numbers.

    Attributes:
        low: Smallest value.
        high: Largest value.
    """

    low: float
    high: float

    @property
    def scale(self) -> float:
        """The largest magnitude."""
        return max(-self.low, self.high)


def extents(inputs: Any) -> tuple[Extent | None, ...]:
    """Returns the range of each array; None of one that is traced, empty or holds no real numbers.

    Args:
        inputs: A pytree of arrays.
    """
    return tuple(map(_extent, jax.tree.leaves(inputs)))


def _extent(leaf: Any) -> Extent | None:
    if not _concrete(leaf) or not np.size(leaf):
        return None
    dtype = jnp.result_type(leaf)
    if not jnp.issubdtype(dtype, jnp.floating) and not jnp.issubdtype(dtype, jnp.integer):
        return None
    values = np.asarray(leaf)  # NumPy's own, also while something else is traced
    low, high = float(values.min()), float(values.max())
    return Extent(low, high) if np.isfinite([low, high]).all() else None


def warn_of_scale(where: str, inputs: Any, seen: Sequence[Extent | None], by: str) -> None:
    """Warns of inputs of quite another scale than those that were seen before.

    Args:
        where: What the warning calls the inputs.
        inputs: A pytree of arrays.
        seen: The ranges of others of the same structure, as `extents` returns them.
        by: Who saw those: "the training".
    """
    now = extents(inputs)
    if len(now) != len(seen):
        return
    for came, before in zip(now, seen, strict=True):
        if came is None or before is None or not came.scale or not before.scale:
            continue
        if not 1 / FAR <= came.scale / before.scale <= FAR:
            warnings.warn(
                f"{where} holds values from {came.low:.4g} to {came.high:.4g}, but {by} saw "
                f"{before.low:.4g} to {before.high:.4g}: scale them as those were, such as "
                "images / 255",
                DataWarning,
                stacklevel=3,
            )


def _is_labels(value: Any) -> bool:
    """Tells whether a value has the form of labels, and can't be images."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jnp.integer) and np.ndim(value) == 1


def _refuse_numbers(where: str, value: Any) -> None:
    """Refuses lists of numbers: JAX would take each of them for an argument."""
    if isinstance(value, list) and value and all(map(_holds_numbers, value)):
        raise TypeError(
            f"{where} is a list of {len(value)} numbers or rows of them: give one array, "
            "np.asarray(...)."
        )
    if isinstance(value, list | tuple):
        for i, one in enumerate(value):
            _refuse_numbers(f"{where}[{i}]", one)


def _holds_numbers(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_holds_numbers, value))
    return isinstance(value, bool | int | float | complex | np.number | np.bool_)


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
    if (way_out := arguments.way_to_array(value)) is not None:
        raise TypeError(
            f"{where} must be an array of numbers, not {describe_value(value)}{way_out}."
        )
    return told_shape, dtype


def _check_lengths(where: str, value: Any) -> None:
    """Checks that arrays have as many examples as each other."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(value)]
    if all(shapes) and len({shape[0] for shape in shapes}) == 1:
        return
    parts = value if isinstance(value, list | tuple) else ()
    for i, part in enumerate(parts):
        entries = {np.shape(entry) for entry in part} if isinstance(part, list) else set()
        if len(entries) == 1 and len(part) > 1:
            raise ValueError(
                f"{where}[{i}] is a list of {len(part)} arrays of shape {list(*entries)}: one "
                "batch is one array, examples on its first axis; np.stack makes it."
            )
    # Many leaves of few shapes: each is said once.
    distinct = list(dict.fromkeys(shapes))
    counted = [f"{shape} ({n} times)" if (n := shapes.count(shape)) > 1 else str(shape)
               for shape in distinct[:6]]  # fmt: skip
    raise ValueError(
        f"{where} must be arrays with the same number of examples on their first axes, not of "
        f"shapes {', '.join(counted)}{', ...' if len(distinct) > 6 else ''}."
    )


def _check_values(
    where: str, value: Any, nan: bool = False, empty: bool = False, infinite: bool = True
) -> None:
    """Checks that an array has entries, and none that is NaN where they are concrete."""
    shape = np.shape(value)
    if not empty and 0 in shape:
        raise ValueError(f"{where} is empty: its shape is {shape}; give one example or more.")
    dtype = getattr(value, "dtype", None)
    if nan or not _concrete(value) or (dtype is not None and not _is_inexact(dtype)):
        return
    # NumPy's own, also while something else is traced.
    values = np.asarray(value, None if dtype is not None else float)
    faults = {"NaN": np.isnan(values)}
    if not infinite:
        faults["infinity"] = np.isinf(values) & (values.real > 0)
    for name, wrong in faults.items():
        if wrong.any():
            raise ValueError(
                f"{where} holds {name}, in {int(wrong.sum())} of {wrong.size} entries."
            )


def _is_inexact(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)


def _concrete(value: Any) -> bool:
    """Tells whether values are known: not traced, no mere shape, no other process's."""
    if isinstance(value, jax.Array):
        return not isinstance(value, jax.core.Tracer) and value.is_fully_addressable
    return not isinstance(value, jax.ShapeDtypeStruct)
