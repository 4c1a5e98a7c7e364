"""A command line from a dataclass of settings: an option per field, its help what stands beside it.

Fields that a command line can hold become options: numbers, texts, paths, `Literal` choices,
booleans, tuples of these, and the fields of settings within settings. `Annotated` says more:
`Least(1)` bounds a number, `SELECTS` marks what picks among tasks without changing any of them,
`SIZELESS` what says nothing about a run's size, `ADDED` what runs that are kept didn't have yet.
"""

import argparse
import dataclasses
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NoReturn,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

SIZES = ("fast", "default", "full")
SELECTS = "selects"
"""Marks a field that picks among tasks: rows that were kept hold whatever it is."""
SIZELESS = "sizeless"
"""Marks a field that makes another run, but neither a larger nor a smaller one."""

ADDED = "added"
"""Marks a field that came after runs were kept, whose default is what they did: with it, rows that
were kept hold."""


class Refused(ValueError):
    """What a study can't be asked for; its message is all that the user sees."""


class Least(NamedTuple):
    """The least value of a number."""

    value: float


Count = Annotated[int, Least(1)]
"""A number of things, of which there is one at least."""


class Order(NamedTuple):
    """What the command line asks for."""

    size: str  # one of `SIZES`
    settings: Any  # of that size, with what was overridden
    changed: dict[str, Any]  # the overrides that make it another run, by option
    seed: int  # of everything
    json: Path | None  # where the JSON goes; beside the figures if None
    results: Path  # folder of all results
    fresh: bool  # whether to forget what an earlier run kept
    # other folders of results, or packed journals, whose rows of this run are taken over
    take: Sequence[Path] = ()
    kept: bool = False  # whether to report what is kept, and make nothing more


@dataclass(frozen=True)
class Option:
    """A field of the settings, on the command line."""

    path: tuple[str, ...]  # names of the fields that lead to it
    help: str  # what is said of it
    arguments: dict[str, Any]  # what `argparse` is told
    marks: tuple[Any, ...]  # what `Annotated` says of it
    default: Any = dataclasses.MISSING  # the field's

    @property
    def selects(self) -> bool:
        """Whether it picks among tasks only."""
        return SELECTS in self.marks

    def identifies(self, settings: Any) -> bool:
        """Whether rows of other settings would be those of another run for it."""
        return not self.selects and (
            ADDED not in self.marks or self.value(settings) != self.default
        )

    @property
    def name(self) -> str:
        """As it is typed, without the dashes before it."""
        return "-".join(self.path).replace("_", "-")

    def value(self, settings: Any) -> Any:
        """Its value in some settings."""
        for name in self.path:
            settings = getattr(settings, name)
        return settings


def read(
    name: str, about: str, sizes: Mapping[str, Any], arguments: Sequence[str] | None = None
) -> Order:
    """Reads a command line.

    Args:
        name: The study's.
        about: Its description.
        sizes: Settings by size.
        arguments: Those after the command; the process' own if None.

    Raises:
        SystemExit: After printing help, or one line that says what is wrong.
    """
    options = list(find_options(type(sizes["default"])))
    asked = vars(_parser(name, about, sizes, options).parse_args(arguments))
    size = "fast" if asked["fast"] else "full" if asked["full"] else "default"
    settings, changed = sizes[size], {}
    for option in options:
        if (value := asked[option.name]) is not None and value != option.value(settings):
            settings = _replaced(settings, option.path, value)
            if not option.selects:
                changed[option.name] = value
    if asked["seed"]:
        changed["seed"] = asked["seed"]
    rest = (asked[key] for key in ("seed", "json", "results", "fresh", "take", "kept"))
    return Order(size, settings, changed, *rest)


def find_options(settings: type, path: tuple[str, ...] = ()) -> Iterator[Option]:
    """The options of a dataclass, those of dataclasses within it behind the field's name."""
    texts = _texts(settings)
    hints = get_type_hints(settings, include_extras=True)
    for field in dataclasses.fields(settings):
        here = (*path, field.name)
        hint: Any = hints[field.name]
        marks: list[Any] = []
        if get_origin(hint) is Annotated:
            hint, *marks = get_args(hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from find_options(hint, here)
        elif arguments := _arguments(hint, marks):
            yield Option(
                here, texts.get(field.name, ""), arguments, tuple(marks), field.default
            )  # fmt: skip


def choose(wanted: Sequence[str], there: Sequence[str], what: str) -> list[str]:
    """Those of `there` that are wanted, all if none is named.

    Raises:
        Refused: One of them isn't there.
    """
    for name in wanted:
        if name not in there:
            raise Refused(f"no {what} {name!r}: choose among {', '.join(there)}")
    return [name for name in there if not wanted or name in wanted]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, and the status of wrong usage."""
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(2)


def _parser(
    name: str, about: str, sizes: Mapping[str, Any], options: Sequence[Option]
) -> argparse.ArgumentParser:
    parser = _Parser(
        name,
        description=inspect.cleandoc(about),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--fast", action="store_true", help="a minute or a few, to see it run")
    size.add_argument("--full", action="store_true", help="as the thesis, or all there is")
    parser.add_argument("--json", type=Path, help="where the JSON goes [in the results folder]")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="folder of all results [results]"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier run kept")
    parser.add_argument(
        "--take", type=Path, nargs="+", default=(), metavar="FOLDER",
        help="other results folders, or packed journals, whose rows of this run are taken over "
        "instead of made again",
    )  # fmt: skip
    parser.add_argument("--seed", type=_seed, default=0, help="seed of everything [0]")
    parser.add_argument(
        "--kept", action="store_true", help="report what is kept so far, and make nothing more"
    )
    group = parser.add_argument_group("settings", "each is the size's unless it is given")
    for option in options:
        text = f"{option.help} [{_shown(option, sizes)}]".strip().replace("%", "%%")
        group.add_argument(
            f"--{option.name}", dest=option.name, default=None, help=text, **option.arguments
        )
    return parser


def _arguments(hint: Any, marks: Sequence[Any]) -> dict[str, Any] | None:
    """What `argparse` is told about a type, None for one that it can't hold."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _arguments(inner[0], inner[1:])
    if origin in (Union, types.UnionType):
        kinds = [one for one in inner if one is not type(None)]
        return _arguments(kinds[0], marks) if len(kinds) == 1 else None
    if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        one = _arguments(inner[0], marks)
        return one and {**one, "nargs": "+", "action": _Tuple}
    if origin is Literal:
        return {"choices": inner, "type": type(inner[0])}
    if hint is bool:
        return {"action": argparse.BooleanOptionalAction}
    if hint in (int, float, str, Path):
        least = next((mark.value for mark in marks if isinstance(mark, Least)), None)
        return {"type": _converter(hint, least), "metavar": hint.__name__.upper()}
    return None


class _Tuple(argparse.Action):
    def __call__(self, _: Any, namespace: Any, values: Any, option: Any = None) -> None:
        before = getattr(namespace, self.dest) or ()  # of the same option, given again
        setattr(namespace, self.dest, (*before, *values))


def _seed(text: str) -> int:
    """Reads a seed, of which JAX takes 64 bits."""
    if not -(2**63) <= (seed := int(text)) < 2**63:
        raise argparse.ArgumentTypeError(f"{text} has more than 64 bits")
    return seed


def _converter(kind: type, least: float | None) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        value = kind(text)
        if least is not None and not value >= least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least:g}")
        return value

    convert.__name__ = kind.__name__  # what argparse calls it where it can't be read
    return convert


def _replaced(settings: Any, path: tuple[str, ...], value: Any) -> Any:
    first, *rest = path
    if rest:
        value = _replaced(getattr(settings, first), tuple(rest), value)
    return dataclasses.replace(settings, **{first: value})


def _shown(option: Option, sizes: Mapping[str, Any]) -> str:
    """The default, or those of the sizes."""
    values = {size: _text(option.value(sizes[size])) for size in SIZES}
    if len(set(values.values())) == 1:
        return values["default"]
    return ", ".join(f"{size} {text}" for size, text in values.items())


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        shown = value if len(value) <= 6 else (*value[:3], "...", f"({len(value)})")
        return " ".join(map(str, shown)) or "all"
    return "unset" if value is None else "all" if value == "" else str(value)


def _texts(settings: type) -> dict[str, str]:
    """What is said of each field, beside it, above it or in the docstring: no capital, no stop."""
    texts: dict[str, str] = {}
    for base in reversed(settings.__mro__[:-1]):
        _, _, listed = inspect.cleandoc(base.__doc__ or "").partition("Attributes:\n")
        texts |= re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE)
        fields = r"^((?:    # .*\n)*)    (\w+): .*?(?:  # (.*))?$"
        for above, name, beside in re.findall(fields, _source(base), re.MULTILINE):
            if said := beside or above.replace("#", " "):
                texts[name] = said
    plain = {name: " ".join(text.split()).rstrip(".") for name, text in texts.items()}
    return {
        name: text[:1].lower() + text[1:] if text[1:2].islower() else text
        for name, text in plain.items()
    }


def _source(settings: type) -> str:
    try:
        return inspect.cleandoc("\n" + inspect.getsource(settings))
    except (OSError, TypeError):  # made where no file is
        return ""
