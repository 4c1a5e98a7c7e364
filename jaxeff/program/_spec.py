"""Resolution of a spec: the setting of every site.

A spec maps patterns to settings: `{"conv*": Additive(0.3), "*:linear": Int(8), "fc3": None}`. A
pattern is a glob over site names, which may hold colons, optionally followed by `:kind`, and **the
most specific pattern that matches a site decides** (`jaxeff.program` has the order): `None` there
leaves the site alone. The order of the dictionary doesn't matter: a spec means the same after JAX
has sorted its keys, as an argument of a jitted function or a sweep's settings.

`fc` matches every use of a shared layer `fc`, `fc#1` its second use only; `relu` is the first
unnamed ReLU alone, `relu*` all of them. A pattern without a kind selects layers that compute; shape
operations and control flow are selected by naming their kind, or the site exactly.

```python
from jaxeff import Int, trace
from jaxeff.nn import small_classifier
from jaxeff.program import matching, resolve

f, params, (x, y) = small_classifier(10)
program = trace(f, params, x)
chosen = resolve({"*:linear": Int(8), "fc*": Int(4), "fc2": None}, program)
assert {site: setting.bits for site, setting in chosen.items()} == {"conv1": 8, "fc1": 4}
assert matching(["fc*"], program) == ["fc1", "fc2"]
```

A transform checks a spec as soon as it gets it, before there is a program:

```python
from jaxeff.program import check_settings

check_settings({"fc*": Int(4), "fc2": None}, Int, "an Int, such as Int(8)")
try:
    check_settings({"fc*": 4}, Int, "an Int, such as Int(8)")
except TypeError as error:
    assert str(error) == (
        "The setting of 'fc*' must be an Int, such as Int(8), or None; not 4."
    )
```
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxeff.program._patterns import SpecError, Target, deciding_patterns, select
from jaxeff.program.ir import KINDS, Layer, Program


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
            f"{wanted}, or None; not {spec!r}."
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
    for pattern, found in layers.items():
        if not any(applies(layer, spec[pattern]) for layer in found):
            listed = ", ".join(f"{layer.site} ({layer.kind})" for layer in found[:5])
            listed += ", ..." if len(found) > 5 else ""
            raise ValueError(
                f"{spec[pattern]!r} was given to {listed}, which has nothing for {purpose} there "
                f"(pattern {pattern!r}); choose other sites or another place."
            )


__all__ = ["SpecError", "check_settings", "matching", "resolve"]
