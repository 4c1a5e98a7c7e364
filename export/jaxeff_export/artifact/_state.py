"""Which arguments of a function are state, and which results are what they become.

A function with state takes it as arguments and returns it anew, after everything else, in a tuple:
``step(params, token, cache) -> (logits, cache)``.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxeff_export.artifact._signature import SignatureError, TensorSpec
from jaxeff_export.artifact._structure import Description, count_leaves


def belongs(spec: TensorSpec, name: str) -> bool:
    """Tells whether an array is a leaf of the argument of that name."""
    # What follows the name has to begin a path: `x` is no prefix of `x2`.
    return spec.name.startswith(name) and spec.name[len(name) :][:1] in ("", "[", ".")


def state_places(
    state: Sequence[str],
    arguments: Sequence[str],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    structure: Description,
) -> list[tuple[int, int]]:
    """Pairs the arrays of state among the arguments with those among the results.

    Args:
      state: names of the arguments that are state, in the order of the results.
      arguments: names of the arguments that are data.
      inputs: their arrays.
      outputs: arrays of the results.
      structure: description of the results.

    Returns:
      Per array its indices in `inputs` and in `outputs`.

    Raises:
      SignatureError: naming an argument that is unknown or named twice, or an array that changes
        its place in the tree, shape or dtype.
    """
    for name in state:
        if name not in arguments or list(state).count(name) > 1:
            twice = "twice" if name in arguments else "no argument that is data"
            raise SignatureError(
                f"state names {name}, which is {twice}; those that are data are "
                f"{', '.join(arguments) or 'none'}"
            )
    if not state:
        return []
    items = structure.get("items", []) if structure["kind"] == "tuple" else []
    if len(items) < len(state):
        raise SignatureError(
            "a function with state returns a tuple, whose last elements are the new "
            f"{', '.join(state)}; this one returns a {structure['kind']}"
        )
    pairs = []
    # Where the leaves of each element of the tuple begin, and what is before the state.
    counts = [count_leaves(item) for item in items]
    for offset, name in enumerate(state):
        place = len(items) - len(state) + offset
        first = sum(counts[:place])
        news = list(enumerate(outputs))[first : first + counts[place]]
        olds = [(i, spec) for i, spec in enumerate(inputs) if belongs(spec, name)]
        if not olds:
            raise SignatureError(f"state names {name}, which has no arrays")
        if len(olds) != len(news):
            raise SignatureError(
                f"the state {name} has {len(olds)} arrays, what replaces it (result[{place}]) has "
                f"{len(news)}; return it in the same tree"
            )
        for (i, old), (j, new) in zip(olds, news, strict=True):
            _require_same(old, new, old.name[len(name) :], f"result[{place}]")
            pairs.append((i, j))
    return pairs


def _require_same(old: TensorSpec, new: TensorSpec, path: str, result: str) -> None:
    if old.varies:
        raise SignatureError(
            f"the state {old.name} has the shape {old.shape}, which varies; leave its argument out "
            "of any_batch"
        )
    # Paths within the trees: a dict with other keys has as many leaves.
    if new.name != result + path:
        raise SignatureError(
            f"the state {old.name} is replaced by {new.name}; return it in the same tree"
        )
    if (old.shape, old.dtype) != (new.shape, new.dtype):
        ours, theirs = (f"{spec.dtype}{list(spec.shape)}" for spec in (old, new))
        raise SignatureError(
            f"the state {old.name} is {ours}, what replaces it ({new.name}) {theirs}; return it in "
            "the same shape and dtype"
        )
