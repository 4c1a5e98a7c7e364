"""Pytree structures written down as plain data, so that a result can be rebuilt without pickle.

A description is JSON: nested objects with a ``kind`` each. Dicts, lists, tuples, named tuples,
None and `jaxeff.Gaussian` come back as what they were (a named tuple as one of equal name
and fields); any other registered node comes back as a dict of its children.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from jaxeff.moment_propagation import Gaussian
from jaxeff_export.artifact._forms import require_form

Description = dict[str, Any]


_ITEMS: dict[str, Any] = {"items": [{}]}
_FORMS: dict[str, dict[str, Any]] = {
    **{"leaf": {}, "none": {}, "list": _ITEMS, "tuple": _ITEMS},
    "dict": {"keys": [(str, int)], **_ITEMS},
    "namedtuple": {"name": str, "keys": [str], **_ITEMS},
    "node": {"name": str, "module": str, "keys": [str], **_ITEMS},
}


def describe(tree: Any) -> Description:
    """Describes a pytree's structure; leaves themselves are not looked at.

    Raises:
      TypeError: if a dict key is neither a string nor an integer.
    """
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


def require_structure(description: Any) -> int:
    """Counts the leaves of a structure of any origin, after checking that it can be rebuilt.

    Raises:
      ValueError: if it is no description; the message names the place.
    """
    try:
        _require_node(description, "structure")
        count = count_leaves(description)
        # A trial with numbers for leaves: a class with other fields shows now, not in a call.
        _rebuild(description, iter(range(count)))
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
            return Gaussian(**children)
        return children
    raise ValueError(f"{kind!r} is no kind of structure; known are {', '.join(_FORMS)}")


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
