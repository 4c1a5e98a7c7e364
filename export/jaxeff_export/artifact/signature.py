"""Names, shapes and dtypes of the flattened arguments and results of a function.

A compiled function takes and returns flat lists of arrays; people think in arguments and pytrees.
A `TensorSpec` ties one to the other: its name is the argument's name followed by the path into it,
such as ``params['conv1']['kernel'].mean`` or ``x``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np


class SignatureError(ValueError):
    """Inputs that do not fit what a function was exported for."""


@dataclass(frozen=True)
class TensorSpec:
    """One array of a function's flattened arguments or results.

    Attributes:
      name: the argument's name and the path into it.
      shape: its shape.
      dtype: the name of its dtype, as numpy and ml_dtypes spell it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TensorSpec:
        """From plain data."""
        shape = tuple(int(size) for size in data["shape"])
        return cls(str(data["name"]), shape, str(data["dtype"]))


def dtype_of(name: str) -> np.dtype:
    """The numpy dtype of a name, ml_dtypes' (``bfloat16``, ``float8_e4m3fn``, …) included.

    Raises:
      SignatureError: if no dtype has that name.
    """
    try:
        return np.dtype(getattr(ml_dtypes, name, name))
    except TypeError as error:
        raise SignatureError(f"no dtype is called {name!r}") from error


def argument_names(f: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The names of the first `count` positional arguments of `f`, or made-up ones."""
    kinds = inspect.Parameter
    names: list[str] = []
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    for parameter in parameters:
        if parameter.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
        elif parameter.kind is kinds.VAR_POSITIONAL:
            rest = count - len(names)
            names.extend(f"{parameter.name}[{index}]" for index in range(rest))
            break
    names.extend(f"argument{index}" for index in range(len(names), count))
    return tuple(names[:count])


def flatten_named(trees: Sequence[Any], names: Sequence[str]) -> tuple[list[Any], list[TensorSpec]]:
    """The leaves of several pytrees as arrays, each with its spec.

    Args:
      trees: one pytree per argument; leaves are arrays, scalars or ``jax.ShapeDtypeStruct``.
      names: one name per argument.

    Raises:
      SignatureError: if a leaf is no array, or a typed PRNG key.
    """
    leaves: list[Any] = []
    specs: list[TensorSpec] = []
    for tree, name in zip(trees, names, strict=True):
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            full = name + jax.tree_util.keystr(path)
            array = _as_array(leaf, full)
            leaves.append(array)
            specs.append(TensorSpec(full, tuple(array.shape), str(np.dtype(array.dtype))))
    return leaves, specs


def _as_array(leaf: Any, name: str) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        array: Any = leaf
    else:
        try:
            array = jnp.asarray(leaf)
        except (TypeError, ValueError) as error:
            raise SignatureError(
                f"{name} is a {type(leaf).__name__}, not an array; bind it in the function instead"
            ) from error
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise SignatureError(
            f"{name} is a typed PRNG key, which has no place in a compiled library; "
            "pass jax.random.key_data(key) and wrap it inside the function"
        )
    return array


def check_leaves(
    inputs: Sequence[Any], names: Sequence[str], expected: Sequence[TensorSpec]
) -> list[np.ndarray]:
    """The leaves of `inputs` as numpy arrays, if they are what is expected.

    Args:
      inputs: one pytree per argument.
      names: the arguments' names.
      expected: the specs of all leaves, in flattening order.

    Raises:
      SignatureError: naming the first input that is missing, superfluous, or of another shape or
        dtype; nothing is converted silently.
    """
    if len(inputs) != len(names):
        raise SignatureError(
            f"{len(inputs)} inputs were given, {len(names)} are expected: {', '.join(names)}"
        )
    wanted = {spec.name: spec for spec in expected}
    given: dict[str, np.ndarray] = {}
    for tree, name in zip(inputs, names, strict=True):
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            full = name + jax.tree_util.keystr(path)
            if full not in wanted:
                raise SignatureError(
                    f"input {full} is not expected; expected are {', '.join(wanted)}"
                )
            given[full] = check_array(np.asarray(leaf), wanted[full])
    if missing := [name for name in wanted if name not in given]:
        raise SignatureError(f"input {missing[0]} is missing; expected are {', '.join(wanted)}")
    return [given[spec.name] for spec in expected]


def check_array(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """The array, if it has the shape and the dtype of `spec`.

    Raises:
      SignatureError: naming the input and what it is instead.
    """
    if tuple(array.shape) != spec.shape:
        raise SignatureError(
            f"input {spec.name} has shape {tuple(array.shape)}, the library was compiled for "
            f"{spec.shape}; deploy again with an example of the shape you need"
        )
    if array.dtype != dtype_of(spec.dtype):
        raise SignatureError(
            f"input {spec.name} has dtype {array.dtype}, the library was compiled for "
            f"{spec.dtype}; convert it with .astype({spec.dtype!r})"
        )
    return array
