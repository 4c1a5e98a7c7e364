"""Pytrees without JAX: the arrays of arguments by their names, and results from descriptions.

A bundle is called where JAX need not be installed. So its manifest describes the structure of
results in JSON, written by `describe` of `jaxeff_export.artifact`, and read here.
"""

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

Description = dict[str, Any]
"""A structure in JSON: its `kind`, one of "leaf", "none", "list", "tuple", "dict", "namedtuple" and
"node"; its `items`, which are described too, and their `keys` where they have names; of named
tuples and nodes also the `name` of the class, and of nodes its `module`.
"""


class SignatureError(ValueError):
    """Inputs that do not fit what a function was exported for."""


def named_leaves(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields the arrays of an argument, each with the name that its `TensorSpec` has.

    Args:
      tree: arrays in dicts, lists, tuples, named tuples and dataclasses, nested.
      name: the argument's name, which a path is appended to: `params['conv1'].mean`.
    """
    if tree is None:
        return
    if isinstance(tree, dict):
        children = [(f"[{key!r}]", child) for key, child in tree.items()]
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        children = [(f".{field}", getattr(tree, field)) for field in tree._fields]
    elif isinstance(tree, list | tuple):
        children = [(f"[{i}]", child) for i, child in enumerate(tree)]
    elif dataclasses.is_dataclass(tree):
        fields = dataclasses.fields(tree)
        children = [(f".{field.name}", getattr(tree, field.name)) for field in fields]
    else:
        yield name, tree
        return
    for path, child in children:
        yield from named_leaves(child, name + path)


def rebuild(description: Description, leaves: Sequence[Any]) -> Any:
    """Builds the pytree of a description with `leaves` in flattening order.

    Raises:
      ValueError: if the number of leaves differs, or the description is not one.
    """
    expected = count_leaves(description)
    if expected != len(leaves):
        raise ValueError(f"the structure has {expected} leaves, {len(leaves)} were given")
    return _rebuild(description, iter(leaves))


def count_leaves(description: Description) -> int:
    """Counts the leaves of a described structure."""
    if description["kind"] == "leaf":
        return 1
    return sum(count_leaves(item) for item in description.get("items", ()))


def _rebuild(description: Description, leaves: Iterator[Any]) -> Any:
    kind = description["kind"]
    if kind == "leaf":
        return next(leaves)
    if kind == "none":
        return None
    items = [_rebuild(item, leaves) for item in description["items"]]
    if kind == "list":
        return items
    if kind == "tuple":
        return tuple(items)
    keys = description["keys"]
    if kind == "dict":
        return dict(zip(keys, items, strict=True))
    if kind == "namedtuple":
        return collections.namedtuple(description["name"], keys)(*items)
    if kind == "node":
        children = dict(zip(keys, items, strict=True))
        # The only class that is imported: no other name in a file chooses code.
        if description["name"] == "Gaussian" and description["module"].startswith("jaxeff."):
            # It loads JAX, which no other result needs.
            from jaxeff.moment_propagation import Gaussian

            return Gaussian(**children)
        return children
    raise ValueError(f"{kind!r} is no kind of structure")
