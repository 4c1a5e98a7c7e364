"""Identity of a run: a checkpoint is continued only by the run that wrote it.

```python
import jax
import jax.numpy as jnp

from jaxeff.store import (
    CheckpointError, describe_arrays, describe_computation, require_same_run, run_identity
)

key, data, params = jax.random.key(0), jnp.arange(4.0), {"w": jnp.ones(())}
parts = describe_arrays("start", params)
parts["loss"] = describe_computation(lambda w, x: ((w["w"] * x) ** 2).mean(), params, data)
written = run_identity(key, data, {"rate": 0.1}, parts)          # goes into the checkpoint

require_same_run("the checkpoint is", written, run_identity(key, data, {"rate": 0.1}, parts))
try:
    require_same_run("the checkpoint is", written, run_identity(key, data, {"rate": 0.2}, parts))
except CheckpointError as error:
    assert "setting 'rate' is 0.1 there and 0.2 here" in str(error)
```
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core import FAST, check_key, validate
from jaxeff.store._computation import array_hash
from jaxeff.store._errors import CheckpointError

Resume = bool | Literal["force"]
"""Whether to go on from what is there; ``"force"`` does so although another run left it."""


@validate(key=check_key)
def run_identity(
    key: jax.Array,
    data: Any,
    settings: Mapping[str, Any] | None,
    parts: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Describes a run by what must not change between its parts, in JSON's types.

    Args:
      key: Random key of the run.
      data: Pytree of arrays.
      settings: Anything else that defines the run, as JSON.
      parts: What else it is made of, by name: `describe_arrays` of where it starts, and
        `describe_computation` of its functions.
    """
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    raw = jax.random.key_data(key) if typed else key
    described: dict[str, Any] = {"key": np.asarray(raw).tolist()}
    # The same words mean other draws under another implementation.
    if typed and jax.random.key_impl(key) == FAST:
        described["key's implementation"] = str(FAST)
    for name, value in (settings or {}).items():
        described[f"setting {name!r}"] = value
    # In this order: the first difference that is named should be the one that people set.
    return described | describe_arrays("data", data) | dict(parts or {})


def describe_arrays(name: str, tree: Any) -> dict[str, Any]:
    """Describes a pytree of arrays, leaf by leaf, in JSON's types.

    Args:
      name: What it is called in messages.
      tree: Pytree of NumPy or JAX arrays: arrays of the same values are the same.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {f"{name}{jax.tree_util.keystr(path)}": _described(leaf) for path, leaf in leaves}


def _described(leaf: Any) -> dict[str, Any]:
    """Describes an array as JAX has it, whichever kind it was given as."""
    # With 64-bit types off, JAX computes on a float64 array as float32: identify it as that, so
    # that NumPy's and JAX's copy of the same data are the same.
    if not isinstance(leaf, jax.Array):
        leaf = np.asarray(leaf)
        leaf = leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    flat = np.asarray(leaf).reshape(-1)
    # A few values beside the hash of all of them: whether rounding alone may have changed it.
    rows = np.linspace(0, max(flat.size - 1, 0), min(flat.size, 64)).astype(int)
    return {
        "shape": list(leaf.shape),
        "dtype": str(leaf.dtype),
        "sample": [f"{v:.6g}" for v in _plain_numbers(flat[rows])],
        "hash": array_hash(leaf),
    }


def _plain_numbers(values: np.ndarray) -> np.ndarray:
    return values if values.dtype.kind == "c" else values.astype(np.float64)


def require_same_run(
    what: str,
    stored: Any,
    given: Any,
    *,
    run: str = "run",
    place: str = "file",
    overwrite: str = 'pass resume=False to overwrite it, or resume="force" to go on all the same',
) -> None:
    """Refuses what another run left.

    Args:
      what: What was found and its verb, the beginning of the message.
      stored: The identity that was found, as JSON has it.
      given: The identity of the run that wants to go on.
      run: What a run is called here.
      place: What to choose another of.
      overwrite: Way to overwrite what is there.

    Raises:
      CheckpointError: They differ; the message names the first difference and the ways out.
    """
    if difference := run_difference(stored, given):
        raise CheckpointError(
            f"{what} of another {run}: {difference}. Continue that {run}, choose another {place}, "
            f"or {overwrite}."
        )


def run_difference(stored: Any, given: Any) -> str:
    """Describes the first difference between two identities, or nothing."""
    # Through JSON first, so that tuples and lists compare equal.
    for name in [*stored, *(name for name in given if name not in stored)]:
        old, new = stored.get(name), _plain(given.get(name))
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            return _part_difference(name, old, new)
        if isinstance(old, dict) or isinstance(new, dict):
            return f"{name} was {'not ' if old is None else ''}recorded there, and is " + (
                "not given here" if new is None else "here"
            )
        return f"{name} is {old!r} there and {new!r} here"
    return ""


def _part_difference(name: str, old: dict[str, Any], new: dict[str, Any]) -> str:
    # In the order shape, dtype, sample, hash: the first one that differs explains the most.
    part = next(k for k in {**old, **new} if old.get(k) != new.get(k))
    there: Any = old.get(part)
    here: Any = new.get(part)
    if part == "jax":
        return f"the {name} was traced by JAX {there} there and {here} here, which may differ"
    if part == "sample" and not old["shape"]:
        return f"{name} is {there[0]} there and {here[0]} here"
    if part == "sample":
        return f"{name} has other values"
    if part == "numbers":
        both = ((there, here, "there"), (here, there, "here"))
        alone = [(", ".join([n for n in a if n not in b][:3]), where) for a, b, where in both]
        details = ", ".join(f"with {numbers} only {where}" for numbers, where in alone if numbers)
        return f"the {name} differs: it computes {details or 'in another order'}"
    if part == "hash" and "numbers" in old:
        return f"the {name} differs: it computes something else"
    if part == "hash":
        return f"{name} has other values, though few or by rounding alone"
    return f"{name} has {part} {there} there and {here} here"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
