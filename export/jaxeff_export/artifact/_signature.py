"""What a function takes and returns, as plain data: names, shapes, dtypes, pytree structures.

A compiled function takes and returns flat lists of arrays; users write arguments and pytrees. A
`TensorSpec` connects the two: its name is the argument's name and the path into it,
such as ``params['conv1']['kernel'].mean`` or ``x``. A size that may vary is written down as text:
``batch`` first in the shape of an input, and in those of results what follows from it, such as
``2*batch``.

A description of a structure is JSON, so that a result can be rebuilt without pickle: nested objects
with a ``kind`` each. Dicts, lists, tuples, named tuples, None and `jaxeff.Gaussian` come back as
what they were (a named tuple as one of equal name and fields); any other registered node comes back
as a dict of its children.

Documents of unknown origin are checked against a form, which is data as well: ``str``; ``bool``;
`COUNT`, a whole number from 0; a list of one form, for a list of any length; a dict of names to
forms, for an object that has these entries; `MappingOf`, for an object with any names; or a tuple
of forms, for one of them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import reprlib
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jaxeff.core import check_params
from jaxeff_export.runtime import Description, SignatureError, count_leaves, rebuild

COUNT = range(2**53)
"""Sizes and other counts: whole numbers that any reader of JSON takes as they are."""

SPEC = {"name": str, "shape": [(COUNT, str)], "dtype": str}
"""A `TensorSpec`, written down."""


@dataclasses.dataclass(frozen=True)
class MappingOf:
    """An object whose values are of one form, whatever their names."""

    form: Any


def require_form(value: Any, form: Any, where: str) -> None:
    """Refuses a value of another form.

    Args:
      value: Value read from JSON.
      form: Form that it has to have.
      where: name in error messages, such as ``inputs[0].shape``.

    Raises:
      ValueError: It is of another form; the first place where, and what is there, are named.
    """
    if isinstance(form, tuple):
        if not any(_fits(value, one) for one in form):
            _refuse(value, " or ".join(_said(one) for one in form), where)
    elif isinstance(form, list):
        if not isinstance(value, list):
            _refuse(value, "a list", where)
        for index, item in enumerate(value):
            require_form(item, form[0], f"{where}[{index}]")
    elif isinstance(form, MappingOf):
        if not isinstance(value, dict):
            _refuse(value, "an object", where)
        for name, item in value.items():
            require_form(item, form.form, f"{where}[{_short(name)}]")
    elif isinstance(form, dict):
        if not isinstance(value, dict):
            _refuse(value, "an object", where)
        for name, inner in form.items():
            place = f"{where}.{name}" if where else name
            if name not in value:
                raise ValueError(f"{place} is missing")
            require_form(value[name], inner, place)
    elif not _fits(value, form):
        _refuse(value, _said(form), where)


def _fits(value: Any, form: Any) -> bool:
    """Tells whether a value is of a form, with parts or without."""
    if form is COUNT:
        # Exactly int: True is one of its instances, but no count.
        return type(value) is int and value in COUNT
    if isinstance(form, type):
        return type(value) is form
    try:
        require_form(value, form, "")
    except ValueError:
        return False
    return True


def _said(form: Any) -> str:
    if form is COUNT:
        return "a count"
    if form in (str, bool):
        return "text" if form is str else "true or false"
    return "a list" if isinstance(form, list) else "an object"


def _refuse(value: Any, wanted: str, where: str) -> None:
    raise ValueError(f"{where} is {_short(value)}, not {wanted}")


def _short(value: Any) -> str:
    return reprlib.repr(value)


BATCH = "batch"
_ARRAYS = (np.ndarray, jax.Array)


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """One array of a function's flattened arguments or results.

    Attributes:
      name: the argument's name and the path into it.
      shape: the shape; a size that may vary is text.
      dtype: the name of its dtype, as numpy and ml_dtypes spell it.
      grid: the step and zero of codes q that stand for `(q - zero) * step`; None of other numbers.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    grid: tuple[float, int] | None = None

    # Asked for several times in every call, so it is worked out once.
    @functools.cached_property
    def varies(self) -> bool:
        """Tells whether the shape depends on the batch."""
        return any(isinstance(size, str) for size in self.shape)

    def admits(self, shape: Sequence[int]) -> bool:
        """Tells whether an array of that shape fits, as far as this array alone tells."""
        return shape == self.shape or (
            len(shape) == len(self.shape)
            and all(
                isinstance(expected, str) or expected == size
                for expected, size in zip(self.shape, shape, strict=True)
            )
        )

    def to_json(self) -> dict[str, Any]:
        """Writes the spec as plain data."""
        more = {} if self.grid is None else {"grid": list(self.grid)}
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype, **more}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TensorSpec:
        """Reads a spec from plain data."""
        shape = tuple(n if isinstance(n, str) else int(n) for n in data["shape"])
        grid = data.get("grid")
        step_and_zero = None if grid is None else (float(grid[0]), int(grid[1]))
        return cls(str(data["name"]), shape, str(data["dtype"]), step_and_zero)


@functools.cache
def dtype_of(name: str) -> np.dtype:
    """Returns the numpy dtype of a name, including ml_dtypes' (``bfloat16``, …).

    Raises:
      SignatureError: if no dtype has that name.
    """
    scalar = getattr(ml_dtypes, name, None)
    if isinstance(scalar, type) and issubclass(scalar, np.generic):
        return np.dtype(scalar)
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError):  # the latter for commas
        dtype = np.dtype(object)
    # np.dtype takes "f4", "S9" and "i4,i4" as well, which no spec says.
    if dtype.kind not in "biufc" or dtype.name != name:
        raise SignatureError(f"no dtype is called {name!r}")
    return dtype


def specs_from_json(items: Any, where: str) -> tuple[TensorSpec, ...]:
    """Reads several specs from plain data of any origin.

    Args:
      items: a list of results of `TensorSpec.to_json`.
      where: name in error messages.

    Raises:
      ValueError: if it is something else, or a dtype is unknown; the entry is named.
    """
    require_form(items, [SPEC], where)
    for index, item in enumerate(items):
        try:
            dtype_of(item["dtype"])
        except SignatureError as error:
            raise ValueError(f"{where}[{index}].dtype: {error}") from None
        if not _is_grid(item.get("grid", [1.0, 0])):
            raise ValueError(f"{where}[{index}].grid is no step above 0 and a code for zero")
    return tuple(TensorSpec.from_json(item) for item in items)


def _is_grid(value: Any) -> bool:
    """Tells whether something of any origin is a step and a zero."""
    if not isinstance(value, list) or len(value) != 2:
        return False
    step, zero = value
    # The type itself: to `isinstance`, True is a whole number as well.
    return isinstance(step, float) and 0 < step < math.inf and type(zero) is int


def with_grids(specs: Sequence[TensorSpec], grids: Sequence[Any]) -> list[TensorSpec]:
    """Notes the grids of the last specs, one for each, where there are such."""
    first = len(specs) - len(grids)
    return [
        spec if i < first else dataclasses.replace(spec, grid=grids[i - first])
        for i, spec in enumerate(specs)
    ]


def argument_names(f: Callable[..., Any], count: int) -> tuple[str, ...]:
    """Returns the names of the first `count` positional arguments of `f`, or made-up ones."""
    kinds = inspect.Parameter
    names: list[str] = []
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):
        # Builtins and some wrappers have no signature: their arguments are numbered.
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
    """Flattens several pytrees to arrays, each with its spec.

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
            shape = tuple(n if isinstance(n, int) else str(n) for n in array.shape)
            specs.append(TensorSpec(full, shape, str(np.dtype(array.dtype))))
    return leaves, specs


def _as_array(leaf: Any, name: str) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        array: Any = leaf
    else:
        try:
            check_params(name, leaf)  # JAX makes arrays of PyTorch's tensors, and traces none
            array = jnp.asarray(leaf)
        except (TypeError, ValueError) as error:
            raise SignatureError(
                f"{name} is a {type(leaf).__name__}, not an array of JAX or NumPy; give one, "
                "or bind it in the function instead"
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
    """Flattens `inputs` to numpy arrays, if they are what is expected.

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
    if [spec.name for spec in expected] == list(names) and all(
        isinstance(a, _ARRAYS) for a in inputs
    ):
        # Arrays alone, as in most calls: no tree is walked, which takes longer than small networks.
        arrays = [check_array(np.asarray(a), s) for a, s in zip(inputs, expected, strict=True)]
        batch_of(arrays, expected)
        return arrays
    wanted = {spec.name: spec for spec in expected}
    arrays_by_name: dict[str, np.ndarray] = {}
    for tree, name in zip(inputs, names, strict=True):
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            full = name + jax.tree_util.keystr(path)
            if full not in wanted:
                raise SignatureError(
                    f"input {full} is not expected; expected are {', '.join(wanted)}"
                )
            arrays_by_name[full] = check_array(np.asarray(leaf), wanted[full])
    if missing := [name for name in wanted if name not in arrays_by_name]:
        raise SignatureError(f"input {missing[0]} is missing; expected are {', '.join(wanted)}")
    # By name, so that dicts may come in any order.
    arrays = [arrays_by_name[spec.name] for spec in expected]
    # Raises where arrays differ in the batch, which no array shows on its own.
    batch_of(arrays, expected)
    return arrays


def arrays_of_bytes(data: bytes, specs: Sequence[TensorSpec]) -> list[np.ndarray]:
    """Reads arrays that lie one after the other, of fixed shapes."""
    arrays, at = [], 0
    for spec in specs:
        shape, dtype = tuple(int(n) for n in spec.shape), dtype_of(spec.dtype)
        count = int(np.prod(shape, dtype=int))
        # Copied, so that an array doesn't keep all of the data, and can be written to.
        arrays.append(np.frombuffer(data, dtype, count, at).reshape(shape).copy())
        at += count * dtype.itemsize
    return arrays


def batched_arguments(
    names: Sequence[str], parameters: int, any_batch: bool | Collection[str]
) -> tuple[str, ...]:
    """Selects the arguments whose batch may vary.

    The first `parameters` are parameters; `any_batch` is True for all the others, or says which.
    """
    data = tuple(names[parameters:])
    # A single name would otherwise be taken for a collection of letters.
    if isinstance(any_batch, str):
        any_batch = (any_batch,)
    chosen = (data if any_batch else ()) if isinstance(any_batch, bool) else tuple(any_batch)
    if unknown := [name for name in chosen if name not in data]:
        raise SignatureError(
            f"any_batch names {unknown[0]}, but the arguments that are data are "
            f"{', '.join(data) or 'none'}"
        )
    if any_batch is True and not chosen:
        raise SignatureError("any_batch is set, but every argument is parameters, without a batch")
    return chosen


def batch_of(arrays: Sequence[np.ndarray], specs: Sequence[TensorSpec]) -> int | None:
    """Returns the batch that arrays have in common; None if none of them has one that varies.

    Raises:
      SignatureError: if it is 0, or another in one array than in another.
    """
    pairs = zip(arrays, specs, strict=True)
    return common_batch([(spec.name, array.shape) for array, spec in pairs if spec.varies])


def common_batch(shapes: Sequence[tuple[str, Sequence[Any]]]) -> int | None:
    """Returns the first size that named shapes have in common; None if there are none."""
    if not shapes:
        return None
    (first, (batch, *_)), *_ = shapes
    for name, shape in shapes:
        # Modules for any batch hold for every size from one on.
        if shape[0] == 0:
            raise SignatureError(
                f"input {name} has shape {tuple(shape)}, an empty batch; give at least one example"
            )
        if shape[0] != batch:
            raise SignatureError(
                f"input {name} has a batch of {shape[0]}, input {first} of {batch}; they have to "
                "be the same"
            )
    return int(batch)


def with_batch(
    arrays: Sequence[Any], specs: Sequence[TensorSpec], size: int | None
) -> list[np.ndarray]:
    """Repeats or cuts the batch of arrays to `size`; None leaves them as they are.

    Raises:
      SignatureError: if no array has a batch that may vary and theirs isn't known to be `size`.
      ValueError: if `size` is not positive.
    """
    if size is None:
        return list(arrays)
    if size < 1:
        raise ValueError(f"the batch must be positive, got {size}")
    if not any(spec.varies for spec in specs):
        raise SignatureError(
            f"the batch cannot be set to {size}: the shapes are fixed; deploy with any_batch=True"
        )
    return [
        # Examples are repeated from the first on, or cut.
        np.asarray(array)[np.arange(size) % len(array)] if spec.varies else array
        for array, spec in zip(arrays, specs, strict=True)
    ]


def check_array(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """Returns the array if it has the shape and the dtype of `spec`.

    Raises:
      SignatureError: naming the input and what it is instead.
    """
    if not spec.admits(array.shape):
        raise SignatureError(
            f"input {spec.name} has shape {tuple(array.shape)}, the library was compiled for "
            f"({', '.join(map(str, spec.shape))}{',' * (len(spec.shape) == 1)}); deploy again with "
            "an example of the shape you need"
        )
    if array.dtype != dtype_of(spec.dtype):
        raise SignatureError(
            f"input {spec.name} has dtype {array.dtype}, the library was compiled for "
            f"{spec.dtype}; convert it with .astype({spec.dtype!r})"
        )
    return array


_ITEMS: dict[str, Any] = {"items": [{}]}
_FORMS: dict[str, dict[str, Any]] = {
    **{"leaf": {}, "none": {}, "list": _ITEMS, "tuple": _ITEMS},
    "dict": {"keys": [(str, int)], **_ITEMS},
    "namedtuple": {"name": str, "keys": [str], **_ITEMS},
    "node": {"name": str, "module": str, "keys": [str], **_ITEMS},
}


def describe(tree: Any) -> Description:
    """Describes a pytree's structure; leaves themselves are not looked at."""
    # To JAX, None is a node without children, and no leaf.
    if tree is not None and jax.tree_util.all_leaves([tree]):
        return {"kind": "leaf"}
    keys, children = _one_level(tree)
    items = [describe(child) for child in children]
    if tree is None:
        return {"kind": "none"}
    if type(tree) is dict:
        for key in keys:
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise TypeError(
                    f"the dict key {key!r} is neither a string nor an integer; rename it"
                )
        return {"kind": "dict", "keys": keys, "items": items}
    if type(tree) in (list, tuple):
        return {"kind": type(tree).__name__, "items": items}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        fields = list(tree._fields)
        return {"kind": "namedtuple", "name": type(tree).__name__, "keys": fields, "items": items}
    return {
        "kind": "node",
        "name": type(tree).__name__,
        "module": type(tree).__module__,
        "keys": [str(key) for key in keys],
        "items": items,
    }


def require_structure(description: Any) -> int:
    """Counts the leaves of a structure of any origin, after checking that it can be rebuilt.

    Raises:
      ValueError: if it is no description; the message names the place.
    """
    try:
        _require_node(description, "structure")
        count = count_leaves(description)
        # A trial with numbers for leaves: a class with other fields shows now, not in a call.
        rebuild(description, range(count))
    except RecursionError:
        raise ValueError("structure is nested deeper than any that jaxeff writes") from None
    except TypeError as error:  # of a class whose fields are others
        raise ValueError(f"structure cannot be rebuilt: {error}") from error
    return count


def _require_node(node: Any, where: str) -> None:
    require_form(node, {"kind": str}, where)
    kind = node["kind"]
    if kind not in _FORMS:
        raise ValueError(f"{where}.kind is {kind!r}, none of {', '.join(_FORMS)}")
    require_form(node, _FORMS[kind], where)
    # A leaf or None with items would be counted by one reader and skipped by another.
    items = node.get("items", []) if _FORMS[kind] else []
    if items != node.get("items", []):
        raise ValueError(f"{where} is a {kind} with items")
    for index, item in enumerate(items):
        _require_node(item, f"{where}.items[{index}]")
    keys = node["keys"] if "keys" in _FORMS[kind] else range(len(items))
    if len(set(keys)) != len(items) or len(keys) != len(items):
        raise ValueError(f"{where}.keys are not as many, all different, as its items")


def _one_level(tree: Any) -> tuple[list[Any], list[Any]]:
    """Returns the keys and the children of a pytree's top node."""
    # Every node but the top one counts as a leaf, so flattening stops after one level.
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    return [_bare(path[0]) for path, _ in pairs], [child for _, child in pairs]


def _bare(key: Any) -> Any:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return str(key)
