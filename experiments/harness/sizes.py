"""Which size's claims a run can decide: judged by its numbers, never by the name of its size.

A run covers a size where no setting asks for less: numbers are no smaller, tuples hold all that the
size's hold, texts and choices are the same. What marks its field `SELECTS` or `SIZELESS` doesn't
count, nor what the size leaves open (None, nothing, "auto").
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.harness.command import SELECTS, SIZELESS, SIZES, Option, find_options
from experiments.harness.journals import identity_of

NARROWED = "narrowed"
"""The size of a run that covers less than the size whose name it bears."""
_OPEN: tuple[Any, ...] = (None, "", "auto", [], {})


def reached(
    config: Mapping[str, Any], sizes: Mapping[str, Any], regardless: Sequence[str] = ()
) -> str:
    """Finds the largest size that a run's settings cover, ``fast`` if they cover none.

    Args:
        config: Of the run's JSON.
        sizes: A study's settings by size.
        regardless: Settings that don't count.
    """
    covered = (size for size in reversed(SIZES) if covers(config, sizes, size, regardless))
    return next(covered, SIZES[0])


def shown_size(config: Mapping[str, Any], sizes: Mapping[str, Any]) -> str:
    """Names a run's size: the one it bears, or `NARROWED` where it covers less than that."""
    return config["size"] if covers(config, sizes, config["size"]) else NARROWED


def covers(
    config: Mapping[str, Any], sizes: Mapping[str, Any], size: str, regardless: Sequence[str] = ()
) -> bool:
    """Tells whether a run's settings ask for no less than a size, or than a larger one."""
    # Sizes are ordered by whoever wrote them: a larger one decides what a smaller one does.
    return not all(
        {*shortfalls(config, sizes, one)} - {*regardless} for one in SIZES[SIZES.index(size) :]
    )


def shortfalls(config: Mapping[str, Any], sizes: Mapping[str, Any], size: str) -> list[str]:
    """Names the settings in which a run asks for less than a size."""
    known = {name: _measures(settings) for name, settings in sizes.items()}
    return [*_lacking(known[size], identity_of(config), [known[name] for name in SIZES], "")]


def _measures(settings: Any) -> dict[str, Any]:
    """The settings that measure a run's size, as JSON has them."""
    measures = identity_of(settings)
    for option in find_options(type(settings)):
        if {SELECTS, SIZELESS} & set(option.marks):
            _drop(measures, option)
    return measures


def _drop(measures: dict[str, Any], option: Option) -> None:
    *outer, last = option.path
    for name in outer:
        measures = measures[name]
    measures.pop(last, None)


def _lacking(wanted: Any, there: Any, ladder: list[Any], place: str) -> Iterator[str]:
    """Compares a size's settings with a run's; `ladder` has all sizes' at this place."""
    if isinstance(wanted, dict) and isinstance(there, Mapping):
        for name, value in wanted.items():
            # A run that is older than a setting doesn't say it.
            if name in there:
                beside = [_at(one, name) for one in ladder]
                yield from _lacking(value, there[name], beside, f"{place}.{name}".strip("."))
    elif not _enough(wanted, there, ladder):
        yield place


def _enough(wanted: Any, there: Any, ladder: list[Any]) -> bool:
    if wanted in _OPEN or wanted == there:
        return True
    if isinstance(wanted, list) and isinstance(there, list):
        return all(any(_like(one, other) for other in there) for one in wanted)
    if not _is_number(wanted) or not _is_number(there):
        return False
    numbers = [one for one in ladder if _is_number(one)]
    # What falls from one size to the next, such as a learning rate, measures no size; and 0 stands
    # for something else than a number of things.
    return numbers != sorted(numbers) or bool(wanted and there >= wanted)


def _like(wanted: Any, there: Any) -> bool:
    """Whether an entry of a tuple is what the size's has; one of settings may have more."""
    if isinstance(wanted, dict):
        return not [*_lacking(wanted, there, [wanted], "")]
    return bool(wanted == there)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _at(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None
