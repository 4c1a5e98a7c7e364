"""Resolution of a spec: the setting of every site, by the most specific pattern that matches it.

A spec maps patterns to settings: `{"conv*": Additive(0.3), "*:linear": Int(8), "fc3": None}`. A
pattern is a glob over site names, which may hold colons, optionally followed by `:kind`, and **the
most specific pattern that matches a site decides**: `None` there leaves the site alone. The order
of the dictionary doesn't matter: a spec means the same after JAX has sorted its keys, as an
argument of a jitted function or a sweep's settings.

```python
from jaxeff import Int, trace
from jaxeff.nn import small_classifier
from jaxeff.program import Target, deciding_patterns, matching, resolve

f, params, (x, y) = small_classifier(10)
program = trace(f, params, x)
chosen = resolve({"*:linear": Int(8), "fc*": Int(4), "fc2": None}, program)
assert {site: setting.bits for site, setting in chosen.items()} == {"conv1": 8, "fc1": 4}
assert matching(["fc*"], program) == ["fc1", "fc2"]
assert deciding_patterns({"fc*": 1, "fc2": 2}, [Target("fc2")]) == {"fc2": "fc2"}
```
"""

import difflib
import fnmatch
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxeff import core
from jaxeff.program.ir import KINDS, Layer, Program

_TOKENS = re.compile(r"(?P<set>\[!?.[^\]]*\])|(?P<star>\*)|(?P<one>\?)|(?P<literal>.)", re.DOTALL)


class SpecError(ValueError):
    """Patterns that can't be applied to the names there are."""


class Target(NamedTuple):
    """An object that a pattern may select.

    Attributes:
        name: The name, which no other target has.
        shared: A name that it has in common with others, such as that of a layer used twice.
        kind: Kind that a pattern's `:kind` is compared with.
        reserved: Whether only its exact name or its kind selects it.
    """

    name: str
    shared: str = ""
    kind: str = ""
    reserved: bool = False


class Pattern(NamedTuple):
    """A pattern taken apart.

    `fc` matches every use of a shared layer `fc`, `fc#1` its second use only; `relu` is the first
    unnamed ReLU alone, `relu*` all of them. A pattern without a kind selects layers that compute;
    shape operations and control flow are selected by naming their kind, or the site exactly.

    A pattern is a glob (`fnmatch`, case-sensitive: `*` any characters, `?` one, `[ab]` one of a
    set, `[!ab]` one outside it), optionally followed by `:kind`. Names may hold colons too: a
    pattern that is a name is that name (`net:linear`, where there is a `net:linear`), and one whose
    last part is no kind has none (`net:*`); `net[:]linear` never names a kind. Of two patterns that
    match a name, the one that comes first in this list decides, and each line settles what the
    lines before it left open:

    1. the name itself over anything else (`fc#1` at the site `fc#1`, also as `fc#1:linear`);
    2. more literal characters over fewer: those outside `*`, `?` and sets (`conv1*` over `conv*`);
    3. no wildcards over some: `fc` is a name of its second use `fc#1` too (`fc` over `fc*` there,
       but `fc#*`, with one literal more, over `fc`);
    4. a kind over none (`*:linear` over `*`);
    5. more sets over fewer (`fc[12]` over `fc?`);
    6. more question marks over fewer (`fc?` over `fc*`).

    Two patterns that are still equal are an error there, also if their settings are the same. So is
    a pattern that decides for no name: one that matches none, or always finds a more specific one.

    Attributes:
        text: Text of the pattern.
        glob: Without the kind.
        kind: The kind it names, or empty.
        literals: Characters outside wildcards.
        stars: Number of `*`.
        sets: Number of `[...]`.
        ones: Number of `?`.
    """

    text: str
    glob: str
    kind: str
    literals: int
    stars: int
    sets: int
    ones: int

    @property
    def is_name(self) -> bool:
        """Whether it has no wildcards."""
        return not (self.stars or self.sets or self.ones)

    def matches(self, target: Target) -> bool:
        """Returns whether it selects a target, however specifically."""
        if self.glob == target.name:
            return self.kind in ("", target.kind)
        if target.reserved if not self.kind else self.kind != target.kind:
            return False
        if self.is_name:
            return self.glob == target.shared != ""
        return fnmatch.fnmatchcase(target.name, self.glob) or (
            target.shared != "" and fnmatch.fnmatchcase(target.shared, self.glob)
        )

    def specificity(self, target: Target) -> tuple[int, ...]:
        """Returns what decides between patterns that match a target, larger being more specific."""
        exact = self.glob == target.name
        literals = len(self.glob) if exact else self.literals
        named = exact or self.is_name
        return (exact, literals, named, bool(self.kind), self.sets, self.ones)


def parse(text: str, kinds: Collection[str] = (), targets: Sequence[Target] = ()) -> Pattern:
    """Takes a pattern apart.

    Without any `kinds` a colon is a character like others; `targets` is what there is to select
    from, as names may hold colons.
    """
    if not isinstance(text, str):
        raise SpecError(f"A spec's keys are patterns (strings), not {text!r}.")
    plain = _counted(text, text)
    glob, separator, kind = text.rpartition(":") if kinds else (text, "", "")
    # A name that ends like a kind is a name first: it can't be written in any other way.
    if not separator or any(text in (t.name, t.shared) for t in targets):
        return plain
    if kind in kinds:
        return _counted(text, glob, kind)
    if any(plain.matches(t) for t in targets):
        return plain
    raise SpecError(f"Pattern {text!r}: there is no kind {kind!r}, only {', '.join(kinds)}.")


def _counted(text: str, glob: str, kind: str = "") -> Pattern:
    kinds_of_tokens = [token.lastgroup for token in _TOKENS.finditer(glob)]
    return Pattern(
        text, glob, kind, *(kinds_of_tokens.count(n) for n in ("literal", "star", "set", "one"))
    )


def deciding_patterns(
    patterns: Iterable[str],
    targets: Sequence[Target],
    *,
    what: str = "site",
    kinds: Collection[str] = (),
    verdicts: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Returns the pattern that decides for each name.

    Args:
        patterns: In any order.
        targets: Names to select from.
        what: The name of a target in error messages.
        kinds: Same as for `parse`.
        verdicts: What each pattern says, where several may say the same: those don't compete.

    Returns:
        Patterns by name, in the order of `targets`; names that no pattern matches are absent.

    Raises:
        SpecError: A pattern matches or decides nothing, two are equally specific for a name, or one
            is no pattern.
    """
    parsed = [parse(text, kinds, targets) for text in patterns]
    verdict = {p.text: p.text for p in parsed} if verdicts is None else verdicts
    matched = {p.text: [t for t in targets if p.matches(t)] for p in parsed}
    rivals: dict[str, list[Pattern]] = {}
    for pattern in parsed:
        if not matched[pattern.text]:
            raise SpecError(_no_match(pattern, targets, what))
        for target in matched[pattern.text]:
            rivals.setdefault(target.name, []).append(pattern)
    decided: dict[str, str] = {}
    for target in targets:
        if target.name in rivals:
            ranks = {p.text: p.specificity(target) for p in rivals[target.name]}
            best = max(ranks.values())
            first, *others = (text for text, rank in ranks.items() if rank == best)
            against = [text for text in others if verdict[text] != verdict[first]]
            if against:
                raise SpecError(
                    f"Patterns {first!r} and {against[0]!r} are equally specific at the {what} "
                    f"{target.name!r}: name it in a pattern of its own, or narrow one of the two. "
                    f"{_listed(targets, matched[first], what)}"
                )
            decided[target.name] = first
    for pattern in parsed:
        matches = matched[pattern.text]
        # A pattern without effect is more likely a slip than meant: refused, not ignored.
        if all(verdict[decided[t.name]] != verdict[pattern.text] for t in matches):
            beaten = ", ".join(f"{decided[t.name]!r} at {t.name!r}" for t in matches)
            raise SpecError(
                f"Pattern {pattern.text!r} decides no {what}: wherever it matches, another is more "
                f"specific ({beaten}); leave it out, or narrow the other. "
                f"{_listed(targets, matches, what)}"
            )
    return decided


def select(
    patterns: Sequence[str],
    targets: Sequence[Target],
    *,
    what: str = "site",
    kinds: Collection[str] = (),
) -> list[str]:
    """Returns the names that any of several patterns matches, in the order of `targets`.

    This one rule serves sites, parameters (`jaxeff.bayes.posteriors`) and the kernels that
    `jaxeff_export.tune` takes.

    ```python
    from jaxeff.program import Target, deciding_patterns, select

    paths = [Target(path) for path in ("conv1/kernel", "conv1/bias", "fc/kernel", "fc/bias")]
    assert deciding_patterns({"*/kernel": 1.0, "fc/*": 2.0, "fc/kernel": 0.1}, paths) == {
        "conv1/kernel": "*/kernel", "fc/kernel": "fc/kernel", "fc/bias": "fc/*"
    }
    assert select(["*bias", "fc*"], paths) == ["conv1/bias", "fc/kernel", "fc/bias"]
    ```

    Args:
        patterns: In any order.
        targets: Names to select from.
        what: The name of a target in error messages.
        kinds: Same as for `parse`.

    Raises:
        TypeError: `patterns` is a single string.
        SpecError: A pattern matches nothing, or is none.
    """
    if isinstance(patterns, str):
        raise TypeError(f"A list of patterns is wanted, such as [{patterns!r}], not {patterns!r}.")
    taken = dict.fromkeys(patterns, True)
    return list(deciding_patterns(taken, targets, what=what, kinds=kinds, verdicts=taken))


def _no_match(pattern: Pattern, targets: Sequence[Target], what: str) -> str:
    shown = [t for t in targets if pattern.kind or not t.reserved]
    near = difflib.get_close_matches(pattern.glob, [t.name for t in shown], cutoff=0.5)
    first = sorted((t for t in shown if t.name in near), key=lambda t: near.index(t.name))
    meant = f" Did you mean {near[0]!r}?" if near else ""
    return f"Pattern {pattern.text!r} matches no {what}. {_listed(shown, first, what)}{meant}"


def _listed(targets: Sequence[Target], first: Sequence[Target], what: str) -> str:
    ordered = dict.fromkeys((*first, *targets))
    names = [f"{t.name}:{t.kind}" if t.kind else t.name for t in ordered]
    return f"The {what}s are: {', '.join(names) or '(none)'}."


def resolve(
    spec: Mapping[str, Any],
    program: Program,
    applies: Callable[[Layer, Any], bool] | None = None,
    purpose: str = "",
) -> dict[str, Any]:
    """Returns the setting of every site that has one.

    Args:
        spec: Settings by pattern; its order plays no part.
        program: The program to apply it to.
        applies: Whether `applies(layer, setting)` changes a layer; checked if given.
        purpose: What is missing where it doesn't, for the error message.

    Returns:
        Settings by site; sites that no pattern matches, or that `None` leaves alone, are absent.

    Raises:
        SpecError: A pattern matches or decides no site, two are equally specific at one, or one
            names a kind that doesn't exist.
        ValueError: A pattern's setting acts on none of the layers that it decides.
    """
    deciding = deciding_patterns(spec, _targets(program), kinds=KINDS)
    chosen = {s: p for s, p in deciding.items() if spec[p] is not None}
    if applies is not None:
        _check_applies(spec, program, chosen, applies, purpose)
    return {site: spec[pattern] for site, pattern in chosen.items()}


def matching(patterns: Sequence[str], program: Program) -> list[str]:
    """Returns the sites that any of some patterns matches, in the program's order.

    Raises:
        TypeError: `patterns` is a single string.
        SpecError: A pattern matches no site, or names a kind that doesn't exist.
    """
    return select(patterns, _targets(program), kinds=KINDS)


def check_settings(spec: Any, kind: type, wanted: str) -> None:
    """Checks a spec before there is a program to apply it to.

    A transform checks a spec as soon as it gets it, before there is a program:

    ```python
    from jaxeff import Int
    from jaxeff.program import check_settings

    check_settings({"fc*": Int(4), "fc2": None}, Int, "an Int, such as Int(8)")
    try:
        check_settings({"fc*": 4}, Int, "an Int, such as Int(8)")
    except TypeError as error:
        assert str(error) == (
            "The setting of 'fc*' must be an Int, such as Int(8), or None; not 4."
        )
    ```

    Args:
        spec: The spec that was given.
        kind: The class or protocol of its settings; None is a setting too.
        wanted: The name of such a setting in error messages, with an example.

    Raises:
        TypeError: It isn't a mapping from patterns to such settings.
    """
    if not isinstance(spec, Mapping):
        raise TypeError(
            f"A spec maps patterns of sites to settings, {{pattern: setting}}, each setting "
            f"{wanted}, or None; not {core.describe_no_mapping(spec)}."
        )
    for pattern, setting in spec.items():
        if not isinstance(pattern, str):
            raise TypeError(f"A spec's keys are patterns of sites (strings), not {pattern!r}.")
        # A class has the methods of its instances, so that a protocol takes it for one of them.
        is_class = isinstance(setting, type)
        if setting is None or (isinstance(setting, kind) and not is_class):
            continue
        hint = f": this is a class, write {setting.__name__}(...)" if is_class else ""
        raise TypeError(
            f"The setting of {pattern!r} must be {wanted}, or None; not {setting!r}{hint}."
        )


def _targets(program: Program) -> list[Target]:
    return [
        # The second ReLU, `relu_1`, is no second use of `relu`.
        Target(s.site, s.base if s.site == f"{s.base}#{s.occurrence}" else "", s.kind,
               reserved=not s.is_matchable)
        for s in program.sites
    ]  # fmt: skip


def _check_applies(
    spec: Mapping[str, Any],
    program: Program,
    chosen: Mapping[str, str],
    applies: Callable[[Layer, Any], bool],
    purpose: str,
) -> None:
    layers: dict[str, list[Layer]] = {}
    for layer in program.sites:
        if layer.site in chosen:
            layers.setdefault(chosen[layer.site], []).append(layer)
    for pattern, matched in layers.items():
        if not any(applies(layer, spec[pattern]) for layer in matched):
            listed = ", ".join(f"{layer.site} ({layer.kind})" for layer in matched[:5])
            listed += ", ..." if len(matched) > 5 else ""
            raise ValueError(
                f"{spec[pattern]!r} was given to {listed}, which has nothing for {purpose} there "
                f"(pattern {pattern!r}); choose other sites or another place."
            )
