"""Pytrees of arrays on disk: one safetensors file, keyed by path, written atomically.

The file is an ordinary safetensors file (any reader opens it); its header also holds what the
format can't: dtypes it doesn't know, random key types, a checksum and the caller's metadata. It
contains no pickle, and loading executes nothing.

```python
import jax
import jax.numpy as jnp

from jaxeff.store import load_metadata, load_pytree, save_pytree

tree = {"fc": {"kernel": jnp.ones((2, 3), jnp.bfloat16)}, "key": jax.random.key(0)}
save_pytree("run.safetensors", tree, {"epoch": 3})
assert load_metadata("run.safetensors") == {"epoch": 3}
found = load_pytree("run.safetensors", like=tree)        # refuses other paths, shapes or dtypes
assert found["fc"]["kernel"].dtype == jnp.bfloat16 and found["key"] == tree["key"]
```
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from jaxeff.core import FAST, string_mapping, validate
from jaxeff.store._writing import CheckpointError, atomic_file, reading_errors

FORMAT = 1
_HEADER = "jaxeff"
_DIGITS = 64  # of a SHA-256
# Stored as they are; other dtypes (bfloat16, float8, …) are stored as integers of their size.
_PLAIN = {
    *("float64", "float32", "float16", "int64", "int32", "int16", "int8", "bool"),
    *("uint64", "uint32", "uint16", "uint8", "complex64"),
}


class _File(NamedTuple):
    arrays: dict[str, np.ndarray]
    key_types: dict[str, str]
    metadata: dict[str, Any]


@validate(metadata=string_mapping)
def save_pytree(
    path: str | os.PathLike[str], tree: Any, metadata: Mapping[str, Any] | None = None
) -> None:
    """Writes a pytree of arrays to ``path``, replacing the file there in one step.

    Args:
      path: The file; its folder is made when missing.
      tree: Any pytree of arrays, numbers and random keys.
      metadata: What else to keep; must be writable as JSON.

    Raises:
      TypeError: A leaf is not an array, or ``metadata`` is not JSON.
      ValueError: Two leaves have the same path.
      OSError: The file cannot be written (the disk is full), and is named; what was there stays.
    """
    arrays: dict[str, np.ndarray] = {}
    key_types: dict[str, str] = {}
    for name, leaf in _named_leaves(tree):
        if name in arrays:
            raise ValueError(f"two leaves of the pytree have the path {name!r}; rename one.")
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            key_types[name] = str(jax.random.key_impl(leaf))
            # A key's implementation is kept beside its numbers: the same bits mean other
            # draws elsewhere.
            leaf = jax.random.key_data(leaf)
        array = np.asarray(leaf)
        # Objects, text and dates: safetensors has no such dtypes, and pickling them would let a
        # file run code when it is loaded.
        if array.dtype.kind in "OSUM":
            raise TypeError(f"the leaf {name!r} is a {type(leaf).__name__}, not an array.")
        # safetensors writes the buffer as it lies, whatever the strides say: copy to C order.
        arrays[name] = np.array(array, order="C")
    header = {
        "format": FORMAT,
        "dtypes": {name: array.dtype.name for name, array in arrays.items()},
        "keys": key_types,
        "metadata": dict(metadata or {}),
    }
    stored = {name: _to_plain(array) for name, array in arrays.items()}
    text = json.dumps(header)
    # One entry, checksum first: safetensors writes several in no fixed order.
    entries = {_HEADER: _digest(text, stored) + text}
    with atomic_file(path) as temporary:
        try:
            save_file(stored, temporary, metadata=entries)
        except SafetensorError as error:  # its way to say that the disk is full
            code = re.search(r"\(os error (\d+)\)", str(error))
            if code is None:
                raise
            raise OSError(int(code[1]), os.strerror(int(code[1])), str(temporary)) from error


@validate()
def load_pytree(path: str | os.PathLike[str], like: Any = None) -> Any:
    """Reads a pytree that `save_pytree` wrote.

    Sharp edges:

    - The tree's *structure* is not stored, only the paths of its leaves. `load_pytree` rebuilds
      nested dicts, or any structure when it is given one as ``like``.
    - Python numbers come back as arrays; ``None`` has no leaves and needs ``like``.
    - A writer killed midway leaves the previous file as it was (`jaxeff.store`).

    Args:
      path: The file.
      like: A pytree of the structure, shapes and dtypes to expect (arrays or
        ``jax.ShapeDtypeStruct``). Without it, nested dicts by path are returned.

    Returns:
      The tree, with JAX arrays as leaves.

    Raises:
      FileNotFoundError: There is no such file.
      CheckpointError: The file is damaged, no such checkpoint, or doesn't match ``like``; the
        message names the file and the first difference.
    """
    path = Path(path)
    file = _read_safetensors(path)
    leaves = {name: _to_jax(path, file, name) for name in file.arrays}
    if like is not None:
        return _match(path, leaves, like)
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *parents, last = name.split("/")
        node = tree
        for key in parents:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                break
        if not isinstance(node, dict) or last in node:
            raise CheckpointError(
                f"the checkpoint {path} has {name!r} and a leaf whose path is a part of it, as "
                "nested dicts can't: give like, the tree that was saved."
            )
        node[last] = leaf
    return tree


@validate()
def load_metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads the metadata that was saved with a pytree.

    Raises:
      FileNotFoundError: There is no such file.
      CheckpointError: The file is damaged or no such checkpoint.
    """
    return _read_safetensors(Path(path)).metadata


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(p, simple=True, separator="/"), leaf) for p, leaf in leaves]


def _read_safetensors(path: Path) -> _File:
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {path}.")
    try:
        with safe_open(path, framework="numpy") as opened:
            entries = opened.metadata() or {}
            stored = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (SafetensorError, UnicodeDecodeError, OSError) as error:
        raise CheckpointError(f"the checkpoint {path} is damaged: {error}.") from error
    if _HEADER not in entries:
        raise CheckpointError(f"{path} is a safetensors file, but not one of jaxeff's.")
    checksum, text = entries[_HEADER][:_DIGITS], entries[_HEADER][_DIGITS:]
    # Finds damage, not forgery: whoever can write the file can write a matching checksum.
    if _digest(text, stored) != checksum:
        raise CheckpointError(
            f"the checkpoint {path} is damaged: its checksum differs from the recorded one."
        )
    with reading_errors(path):
        header = json.loads(text)
        if not isinstance(header, dict):
            raise ValueError(f"its header is a {type(header).__name__}, not an object")
        if header["format"] != FORMAT:
            raise CheckpointError(
                f"the checkpoint {path} has format {header['format']!r:.50}; this version of "
                f"jaxeff reads format {FORMAT}."
            )
        # In the order of writing, which the file doesn't keep.
        dtypes, key_types, metadata = (header[n] for n in ("dtypes", "keys", "metadata"))
        if dtypes.keys() != stored.keys() or not key_types.keys() <= stored.keys():
            other = (dtypes.keys() ^ stored.keys()) | (key_types.keys() - stored.keys())
            raise ValueError(f"header and arrays differ in {min(other)!r}")
        if not isinstance(metadata, dict):
            raise ValueError(f"its metadata are a {type(metadata).__name__}, not an object")
        arrays = {name: _from_plain(name, stored[name], dtypes[name]) for name in dtypes}
    return _File(arrays, key_types, metadata)


def _match(path: Path, leaves: dict[str, jax.Array], like: Any) -> Any:
    expected = dict(_named_leaves(like))
    for name, want in expected.items():
        shape, dtype = jnp.shape(want), _dtype(want)
        if name not in leaves:
            raise CheckpointError(
                f"the checkpoint {path} is of another model: it has no {name!r} "
                f"(expected {dtype}{list(shape)})."
            )
        got = leaves[name]
        if (got.shape, got.dtype) != (shape, dtype):
            raise CheckpointError(
                f"the checkpoint {path} is of another model: {name!r} is "
                f"{got.dtype}{list(got.shape)}, expected {dtype}{list(shape)}."
            )
    for name in leaves:
        if name not in expected:
            raise CheckpointError(
                f"the checkpoint {path} is of another model: it has {name!r}, which is not "
                "expected."
            )
    return jax.tree.unflatten(jax.tree.structure(like), [leaves[name] for name in expected])


def _dtype(leaf: Any) -> Any:
    return leaf.dtype if hasattr(leaf, "dtype") else jnp.asarray(leaf).dtype


def _to_jax(path: Path, file: _File, name: str) -> jax.Array:
    array = jnp.asarray(file.arrays[name])
    if name in file.key_types:
        implementation = file.key_types[name]
        # `FAST` is not in JAX's table of names, so the object itself is handed over.
        known = FAST if implementation == str(FAST) else implementation
        with reading_errors(path):
            return jax.random.wrap_key_data(array, impl=known)
    return array


def _to_plain(array: np.ndarray) -> np.ndarray:
    if array.dtype.name in _PLAIN:
        return array
    return array.view(f"u{array.dtype.itemsize}")


def _from_plain(name: str, array: np.ndarray, dtype_name: str) -> np.ndarray:
    """Restores the bits of a dtype that was stored as integers."""
    dtype = jnp.dtype(dtype_name)
    stored = dtype if dtype.name in _PLAIN else np.dtype(f"u{dtype.itemsize}")
    # Views of objects crash, and of numbers of another size have another shape.
    numeric = jnp.issubdtype(dtype, jnp.number) or dtype == jnp.bool_
    if not isinstance(dtype_name, str) or not numeric or array.dtype != stored:
        raise ValueError(f"{name!r} is {array.dtype} in the file, {dtype_name!r:.50} in its header")
    return array.view(dtype)


def _digest(header: str, stored: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(header.encode())
    # Names, dtypes and shapes enter the checksum too: equal bytes may mean another array.
    for name in sorted(stored):
        array = stored[name]
        digest.update(f"{name} {array.dtype.name} {array.shape};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
