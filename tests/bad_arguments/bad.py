"""Values that stand for nothing, by the kind of the value whose place they take."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

KEYS = jax.random.split(jax.random.key(0), 3)
MODEL = nnx.Linear(3, 2, rngs=nnx.Rngs(0))


def kind_of(value: Any) -> str:
    """The kind of a valid value; "" for one that no bad values are known for."""
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, int | float | str):
        return {int: "count", float: "number", str: "word"}[type(value)]
    if isinstance(value, Path):
        return "path"
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return "key"
    if isinstance(value, optax.GradientTransformation):
        return "optimizer"
    if type(value) is tuple and len(value) == 2 and all(hasattr(v, "shape") for v in value):
        return "data"
    if isinstance(value, Mapping):
        leaves = jax.tree.leaves(dict(value), is_leaf=lambda v: hasattr(v, "__dataclass_fields__"))
        return "params" if leaves and all(hasattr(v, "ndim") for v in leaves) else "mapping"
    if isinstance(value, jax.Array | np.ndarray) and value.ndim:
        if value.dtype == np.bool_:
            return "mask"
        return "labels" if np.issubdtype(value.dtype, np.integer) else "array"
    if isinstance(value, list | tuple) and value and all(isinstance(v, str) for v in value):
        return "names"
    if isinstance(value, list) and value and all(hasattr(v, "shape") for v in value):
        return "batches"
    if callable(value) and not hasattr(value, "__dataclass_fields__"):
        return "function"
    if type(value) is tuple and value and callable(value[0]):
        return "object"  # a step with its parameters and its state
    return "object" if hasattr(value, "__dataclass_fields__") or hasattr(value, "_fields") else ""


def bad_values(value: Any) -> dict[str, Any]:
    """What must be refused in the place of a valid value, by what it is."""
    kind = kind_of(value)
    found = dict(ALWAYS.get(kind, {}))
    if kind == "data":
        found |= _bad_data(value)
    elif kind == "batches":
        found |= _bad_batches(value)
    elif kind == "array":
        found |= _bad_arrays(value)
    elif kind == "labels":
        found |= _bad_labels(value)
    elif kind == "mapping" and any(hasattr(v, "__dataclass_fields__") for v in value.values()):
        setting = next(v for v in value.values() if v is not None)
        found |= {"a class in it": {k: type(setting) for k in value}}
    return found


NUMBERS = {"None": None, "text": "three", "NaN": float("nan"), "a function": abs}
ALWAYS: dict[str, dict[str, Any]] = {
    "key": {"None": None, "a number": 7, "keys": KEYS, "floats": jnp.ones(2), "text": "key"},
    "count": {**NUMBERS, "negative": -2, "zero": 0, "a fraction": 2.5, "infinity": float("inf")},
    "number": {**NUMBERS, "negative": -2.0, "infinity": float("inf"), "a list": [1.0, "two"]},
    "word": {"None": None, "a number": 3, "unknown": "no such"},
    "flag": {"None": None, "text": "yes", "a number": 2.5},
    "path": {"a number": 3.5},
    "optimizer": {"None": None, "uncalled": optax.adam, "text": "adam"},
    "params": {"None": None, "a model": MODEL, "text": "weights", "words": {"w": "ones"}},
    "mapping": {"None": None, "a list": ["fc1"], "text": "fc1", "numbers as names": {3: None}},
    "names": {"None": None, "a number": 3, "numbers": [1, 2]},
    "function": {"None": None, "a number": 3, "a model": MODEL, "a dictionary": {}},
    "mask": {"None": None, "text": "all", "numbers": jnp.ones(4), "empty": jnp.ones(0, bool)},
    "object": {"None": None, "a number": 3, "text": "it", "a dictionary": {}},
}  # fmt: skip


def _bad_arrays(value: Any) -> dict[str, Any]:
    return {
        "None": None,
        "text": "ones",
        "words": np.full(np.shape(value), "one"),
        "NaN": jnp.full_like(value, jnp.nan),
        "empty": value[:0],
        "complex": jnp.asarray(value) * 1j,
    }


def _bad_labels(value: Any) -> dict[str, Any]:
    return {
        "None": None,
        "text": "ones",
        "fractions": jnp.full(value.shape, 0.5),
        "NaN": jnp.full(value.shape, jnp.nan),
        "negative": -1 - jnp.asarray(value),
        "too large": jnp.asarray(value) + 1000,
        "empty": value[:0],
    }


def _bad_data(value: tuple[Any, Any]) -> dict[str, Any]:
    x, y = value
    return {
        "None": None,
        "inputs alone": x,
        "a dictionary": {"x": x, "y": y},
        "words": ("images", "labels"),
        "empty": (x[:0], y[:0]),
        "of two lengths": (x, y[:-1]),
        "NaN": (jnp.full_like(x, jnp.nan), y),
        "fractional labels": (x, y + 0.5),
        "labels beyond the classes": (x, y + 1000),
        "negative labels": (x, -1 - y),
    }


def _bad_batches(value: list[Any]) -> dict[str, Any]:
    x = value[0]
    return {
        "None": None,
        "a number": 3,
        "text": "batches",
        "none": [],
        "an array": x,
        "one empty": [x, x[:0]],
        "NaN in one": [jnp.full_like(x, jnp.nan)],
    }
