"""Which tensor is which parameter: module by module, where one is nearer than all others.

Modules fit if their numbers have the same ranks and every parameter has a tensor of its role and a
shape that a layout leads to. Of those that fit, two are a pair if each is the other's only best by
the words of their names. What is left over is never guessed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from jaxeff.weights._layouts import fitting_layouts
from jaxeff.weights._names import Name, likeness, parse_name, ranked_numbers

Shapes = Mapping[str, tuple[int, ...]]
_Module = dict[str, str]  # a name by role


def match_names(parameters: Shapes, tensors: Shapes, whole: Iterable[str]) -> dict[str, str]:
    """Pairs parameters with tensors.

    Args:
        parameters: Shapes of the parameters that need a tensor.
        tensors: Shapes of the tensors that none has yet.
        whole: Names of all parameters, which rank their numbers.

    Returns:
        The tensor of each parameter that has a clear one.
    """
    ours, theirs = _modules(parameters), _modules(tensors)
    our_ranks = ranked_numbers(parse_name(name).module for name in whole)
    their_ranks = ranked_numbers(theirs)
    by_rank: dict[tuple[int, ...], list[tuple[str, ...]]] = defaultdict(list)
    for module in theirs:
        by_rank[their_ranks[module]].append(module)
    scores: dict[tuple[str, ...], dict[tuple[str, ...], float]] = {}
    for module, roles in ours.items():
        scores[module] = {
            other: likeness(Name(module, "", ""), Name(other, "", ""))
            for other in by_rank[our_ranks[module]]
            if _fits(roles, theirs[other], parameters, tensors)
        }
    found: dict[str, str] = {}
    for module, other in _mutual_best(scores).items():
        found |= {name: theirs[other][role] for role, name in ours[module].items()}
    return found


def nearest(parameter: str, shape: tuple[int, ...], tensors: Shapes, count: int = 3) -> list[str]:
    """Lists the tensors that a parameter may mean: of a shape that fits, the likest names first."""
    name = parse_name(parameter)
    fitting = [t for t, given in tensors.items() if fitting_layouts(shape, name, given)]
    return sorted(fitting, key=lambda t: -likeness(name, parse_name(t)))[:count]


def _modules(names: Iterable[str]) -> dict[tuple[str, ...], _Module]:
    found: dict[tuple[str, ...], _Module] = defaultdict(dict)
    for text in names:
        name = parse_name(text)
        module = name.module
        while name.role in found[module]:  # two names that differ in their signs alone
            module = (*module, "again")
        found[module][name.role] = text
    return dict(found)


def _fits(roles: _Module, others: _Module, parameters: Shapes, tensors: Shapes) -> bool:
    return all(
        role in others
        and fitting_layouts(parameters[name], parse_name(name), tensors[others[role]])
        for role, name in roles.items()
    )


def _mutual_best(
    scores: Mapping[tuple[str, ...], Mapping[tuple[str, ...], float]],
) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Pairs what is each other's only best, again and again among those that are left."""
    columns: dict[tuple[str, ...], dict[tuple[str, ...], float]] = defaultdict(dict)
    for row, entries in scores.items():
        for column, score in entries.items():
            columns[column][row] = score
    rows = {row: dict(entries) for row, entries in scores.items()}
    pairs: dict[tuple[str, ...], tuple[str, ...]] = {}
    while True:
        found = []
        for row, entries in rows.items():
            best = _only_best(entries)
            if best is not None and _only_best(columns[best]) == row:
                found.append((row, best))
        if not found:
            return pairs
        for row, column in found:
            pairs[row] = column
            for other in columns.pop(column):
                rows.get(other, {}).pop(column, None)
            for other in rows.pop(row):
                columns[other].pop(row, None)


def _only_best(entries: Mapping[tuple[str, ...], float]) -> tuple[str, ...] | None:
    best = max(entries.values(), default=None)
    names = [name for name, score in entries.items() if score == best]
    return names[0] if len(names) == 1 else None
