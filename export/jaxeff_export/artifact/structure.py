"""Pytree structures written down as plain data, so that a result can be rebuilt without pickle.

A description is JSON: nested objects with a ``kind`` each. Dicts, lists, tuples, named tuples,
None and `jaxeff.moments.Gaussian` come back as what they were (a named tuple as one of equal name
and fields); any other registered node comes back as a dict of its children.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import jax

Description = dict[str, Any]


def describe(tree: Any) -> Description:
    """The description of a pytree's structure; leaves themselves are not looked at.

    Raises:
      TypeError: if a dict key is neither a string nor an integer.
    """
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


def rebuild(description: Description, leaves: Sequence[Any]) -> Any:
    """The pytree of a description with `leaves` in flattening order.

    Raises:
      ValueError: if the number of leaves differs, or the description is not one.
    """
    expected = count_leaves(description)
    if expected != len(leaves):
        raise ValueError(f"the structure has {expected} leaves, {len(leaves)} were given")
    return _rebuild(description, iter(leaves))


def count_leaves(description: Description) -> int:
    """How many leaves a described structure has."""
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
        if description["name"] == "Gaussian" and description["module"].startswith("jaxeff."):
            from jaxeff.moment_propagation import Gaussian

            return Gaussian(**children)
        return children
    raise ValueError(
        f"{kind!r} is no kind of structure; known are leaf, none, list, tuple, "
        "dict, namedtuple and node"
    )


def _one_level(tree: Any) -> tuple[list[Any], list[Any]]:
    """The keys and the children of a pytree's top node."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    return [_bare(path[0]) for path, _ in pairs], [child for _, child in pairs]


def _bare(key: Any) -> Any:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return str(key)
