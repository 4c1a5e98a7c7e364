"""Projections of attention that a file holds as one tensor: query, key and value in thirds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from jaxeff.weights._names import parse_name

_FUSED = (("qkv",), ("in", "proj"), ("c", "attn"), ("w", "qkv"))
_PARTS = "qkv"


def split_fused(
    arrays: dict[str, np.ndarray], parameters: Iterable[str]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Splits fused tensors if the parameters aren't fused themselves.

    Thirds stand one after the other, in the order query, key, value. What mixes them by head, or
    has fewer keys than queries, needs a rule.

    Args:
        arrays: The tensors.
        parameters: Names of the parameters.

    Returns:
        The tensors with the parts in the place of what was split, and the tensor that each part
        comes from.
    """
    words = set().union(*(parse_name(name).words for name in parameters))
    if not words.issuperset(_PARTS):
        return arrays, {}
    found: dict[str, np.ndarray] = {}
    whole: dict[str, str] = {}
    for name, array in arrays.items():
        mark, axis = _mark(name), _axis(array)
        if mark is None or axis is None:
            found[name] = array
            continue
        start = name.rindex(mark)
        for part, piece in zip(_PARTS, np.split(array, 3, axis), strict=True):
            piece_name = f"{name[:start]}{part}{name[start + len(mark) :]}"
            # A role in one word with the mark (`in_proj_weight`) stays one after it.
            found[piece_name] = piece
            whole[piece_name] = name
    return found, whole


def _mark(name: str) -> str | None:
    module = parse_name(name).module
    for mark in _FUSED:
        text = "_".join(mark)
        if module[-len(mark) :] == mark and text in name:
            return text
    return None


def _axis(array: np.ndarray) -> int | None:
    """The axis that holds the thirds: of a matrix the one that is three times the other."""
    if array.ndim == 1:
        return 0 if len(array) % 3 == 0 else None
    if array.ndim != 2:
        return None
    rows, columns = array.shape
    return 0 if rows == 3 * columns else 1 if columns == 3 * rows else None
