"""Folders that Orbax writes: their arrays by name, and parameters as such a folder or a file.

Sharp edges:
    Orbax is imported where a folder is met: that takes a second.
    A folder holds no code; what its arrays would take in memory is asked of its list of them before
    any is read, and stays under the budget of `jaxeff.store`.
    Of a manager's folder the last step is taken; where it has several items, name the item's
    folder.
"""

import math
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.flax import save

from jaxeff.core import parameter_tree, path_like, validate
from jaxeff.store import atomic_file, require_inflatable, write_atomically

TREE = "_METADATA"
"""The file that lists a tree's arrays."""


class OrbaxError(ValueError):
    """A folder isn't one that Orbax wrote, or holds more than one tree."""


def read_orbax(path: Path) -> dict[str, np.ndarray]:
    """Reads all arrays of a folder, by their path in the tree, with slashes.

    Raises:
        InflationError: They would take more memory than such a folder may.
        OrbaxError: It is no folder of Orbax, or has several items.
        Exception: What Orbax makes of a damaged one.
    """
    import orbax.checkpoint as ocp

    folder = _item(path)
    with ocp.PyTreeCheckpointer() as reader:
        told = reader.metadata(folder.absolute()).item_metadata
        listed, structure = jax.tree.flatten(getattr(told, "tree", told))
        on_disk = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        require_inflatable(
            (math.prod(a.shape) * np.dtype(a.dtype).itemsize for a in listed),
            on_disk,
            "read it with Orbax and hand over a mapping of arrays",
        )
        # As NumPy's: the devices that an array was on when it was written may not be here.
        plain = [ocp.RestoreArgs(restore_type=np.ndarray)] * len(listed)
        tree = reader.restore(folder.absolute(), restore_args=jax.tree.unflatten(structure, plain))
    arrays = {name: np.asarray(leaf) for name, leaf in named_leaves(tree).items()}
    # An `nnx.State` is written with a level below each variable.
    for level in ("/value", "/raw_value"):
        if all(name.endswith(level) for name in arrays):
            return {name.removesuffix(level): array for name, array in arrays.items()}
    return arrays


def named_leaves(tree: Any) -> dict[str, Any]:
    """Names the leaves of a pytree by their path, with slashes."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(p, simple=True, separator="/"): leaf for p, leaf in leaves}


def _item(path: Path) -> Path:
    """Finds the folder of a tree: itself, or an item of a manager's last step."""
    if (path / TREE).exists():
        return path
    steps = [each for each in path.iterdir() if each.is_dir() and each.name.isdecimal()]
    folder = max(steps, key=lambda each: int(each.name)) if steps else path
    items = sorted(each for each in folder.iterdir() if (each / TREE).exists())
    if not items:
        raise OrbaxError(
            f"{path} is a folder, but none that Orbax wrote: neither it nor an item of a step has "
            f"a file {TREE}."
        )
    if len(items) > 1:
        names = ", ".join(str(each) for each in items)
        raise OrbaxError(f"{path} has several items; give one of {names}.")
    return items[0]


@validate(params=parameter_tree, path=path_like)
def save_weights(params: Any, path: str | os.PathLike[str]) -> Path:
    """Writes parameters for others: `.safetensors`, `.npz`, or a folder of Orbax.

    Args:
        params: A pytree of arrays. Names in a file are paths in it, with slashes.
        path: A file by its ending; without an ending a folder, which must not be there yet.

    Returns:
        The path.

    Raises:
        FileExistsError: There is such a folder.
        ValueError: The ending is another one, or `.npz` has no such dtype (bfloat16).

    ```python
    import jax.numpy as jnp
    import jaxeff
    from jaxeff.weights import save_weights

    params = {"layer": {"kernel": jnp.ones((2, 3)), "bias": jnp.zeros(3)}}
    for name in ("model.safetensors", "model.npz", "checkpoint"):
        again, _ = jaxeff.load_weights(params, save_weights(params, name))
        assert again["layer"]["kernel"].tolist() == params["layer"]["kernel"].tolist()
    ```
    """
    path = Path(path)
    arrays = {name: np.asarray(leaf) for name, leaf in named_leaves(params).items()}
    ending = path.suffix.lower()
    if ending == ".safetensors":
        write_atomically(path, save({name: jnp.asarray(a) for name, a in arrays.items()}))
    elif ending == ".npz":
        if strange := [name for name, array in arrays.items() if array.dtype.kind == "V"]:
            raise ValueError(
                f"save_weights: .npz has no {arrays[strange[0]].dtype}, as {strange[0]} is: write "
                ".safetensors."
            )
        with atomic_file(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    elif ending:
        raise ValueError(
            "save_weights: path must end in .safetensors or .npz, or have no ending for a folder "
            f"of Orbax, not in {ending}."
        )
    else:
        _write_orbax(params, path)
    return path


def _write_orbax(params: Any, path: Path) -> None:
    import orbax.checkpoint as ocp

    if path.exists():
        raise FileExistsError(f"save_weights: {path} is there already.")
    with ocp.StandardCheckpointer() as writer:
        writer.save(path.absolute(), params)
