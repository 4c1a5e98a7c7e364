"""What makes a run the same run: a checkpoint is continued only by the run that wrote it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.keys import FAST
from jaxeff.store.errors import CheckpointError


def run_identity(key: jax.Array, data: Any, settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Describe a run by what must not change between its parts, in JSON's types.

    Args:
      key: Random key of the run.
      data: Pytree of arrays; known by shapes, dtypes and a few values.
      settings: What else defines the run, as JSON.
    """
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    raw = jax.random.key_data(key) if typed else key
    described: dict[str, Any] = {"key": np.asarray(raw).tolist()}
    if typed and jax.random.key_impl(key) == FAST:
        described["key's implementation"] = str(FAST)
    for name, value in (settings or {}).items():
        described[f"setting {name!r}"] = value
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        # A few values tell other data from these without reading all of them again; six digits
        # survive another processor's rounding in their preparation.
        flat = leaf.reshape(-1)
        rows = np.linspace(0, max(flat.size - 1, 0), min(flat.size, 64)).astype(int)
        described[f"data{jax.tree_util.keystr(path)}"] = {
            "shape": list(leaf.shape),
            "dtype": str(leaf.dtype),
            "sample": [f"{v:.6g}" for v in np.asarray(flat[rows], np.float64)],
        }
    return described


def require_same_run(
    what: str,
    stored: Any,
    given: Any,
    *,
    run: str = "run",
    place: str = "file",
    overwrite: str = "pass resume=False to overwrite it",
) -> None:
    """Refuse what another run left.

    Args:
      what: What was found and its verb, the beginning of the message.
      stored: The identity that was found, as JSON has it.
      given: The identity of the run that wants to go on.
      run: What a run is called here.
      place: What to choose another of.
      overwrite: How to do away with what is there.

    Raises:
      CheckpointError: They differ; the message names the first difference and the ways out.
    """
    if difference := run_difference(stored, given):
        raise CheckpointError(
            f"{what} of another {run}: {difference}. Continue that {run}, choose another {place}, "
            f"or {overwrite}."
        )


def run_difference(stored: Any, given: Any) -> str:
    """Return the first difference between two identities, in words, or nothing."""
    # Through JSON first, so that tuples and lists compare equal.
    for name in [*stored, *(name for name in given if name not in stored)]:
        old, new = stored.get(name), _plain(given.get(name))
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            part = next(k for k in {**old, **new} if old.get(k) != new.get(k))
            if part == "sample":
                return f"{name} has other values"
            return f"{name} has {part} {old.get(part)} there and {new.get(part)} here"
        return f"{name} is {old!r} there and {new!r} here"
    return ""


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
