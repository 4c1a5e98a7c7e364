"""What a library's models are read as: a runner, and arrays by path."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flax.traverse_util import unflatten_dict

Method = str | Callable[..., Any] | None
Leaves = dict[str, Any]


@dataclass(frozen=True)
class LibraryModel:
    """A model of any library.

    Attributes:
        run: ``run(key or None, params by path, state by path, args, kwargs)`` gives the result and
            the new state by path.
        params: The trainable arrays by path.
        state: All other arrays by path.
        restored: ``restored(params by path, state by path)`` makes a model of the same library.
        keys: The keys of a path where they aren't its parts between slashes.
    """

    run: Callable[[Any, Leaves, Leaves, tuple[Any, ...], dict[str, Any]], tuple[Any, Leaves]]
    params: Leaves
    state: Leaves
    restored: Callable[[Leaves, Leaves], Any]
    keys: dict[str, tuple[str, ...]] = field(default_factory=dict)


def flatten(tree: Any, prefix: str = "") -> Leaves:
    """Flattens nested mappings to leaves by path; anything but a mapping is a leaf."""
    if not isinstance(tree, Mapping):
        return {prefix: tree}
    leaves: Leaves = {}
    for key, child in tree.items():
        leaves.update(flatten(child, f"{prefix}/{key}" if prefix else str(key)))
    return leaves


def nest(leaves: Mapping[str, Any], keys: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Builds nested dicts of leaves by path; the keys of a path are its parts if none are given."""
    return unflatten_dict(
        {keys.get(path) or tuple(path.split("/")): v for path, v in leaves.items()}
    )
