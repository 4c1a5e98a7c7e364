"""Which setting a transform applies where.

A spec maps patterns to settings: `{"conv*": Additive(0.3), "*:linear": Int(8), "fc3": None}`. A
pattern is a glob over site names (`fnmatch`), optionally followed by `:kind`. The first pattern
that matches a site wins; `None` leaves it alone. `fc` matches every use of a shared layer `fc`,
`fc#1` its second use only; `relu` is the first unnamed ReLU alone, `relu*` all of them. A pattern
without a kind selects layers that compute; shape operations and control flow are selected by naming
their kind.

Sharp edge: JAX sorts the keys of a dict that passes through `jit`, `vmap` or `jax.tree.map`, and
with them the precedence of its patterns. A spec that is swept as a pytree and whose order matters
should be a `collections.OrderedDict`, which keeps it.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any

from jaxeff.program.layers import KINDS, Layer, Program


class SpecError(ValueError):
    """A spec that can't be applied to a program."""


def resolve(spec: Mapping[str, Any], program: Program) -> dict[str, Any]:
    """The setting of every site that has one.

    Args:
        spec: Patterns and settings, in order of precedence.
        program: The program to apply it to.

    Returns:
        Settings by site; sites that no pattern matches, or that `None` leaves alone, are absent.

    Raises:
        SpecError: If a pattern matches no site, or names a kind that doesn't exist.
    """
    sites = program.sites
    settings: dict[str, Any] = {}
    decided: set[str] = set()
    for pattern, setting in spec.items():
        matched = [layer for layer in sites if _matches(pattern, layer)]
        if not matched:
            raise SpecError(_no_match(pattern, program))
        for layer in matched:
            if layer.site not in decided:
                decided.add(layer.site)
                if setting is not None:
                    settings[layer.site] = setting
    return settings


def later_uses_first(sites: Iterable[str]) -> list[str]:
    """Sites in the order in which a spec gives each its own setting: `fc` matches `fc#1` too."""
    return sorted(sites, key=lambda site: "#" not in site)


def _matches(pattern: str, layer: Layer) -> bool:
    glob, kind = _parts(pattern)
    if kind and layer.kind != kind:
        return False
    if not kind and not layer.is_matchable and layer.site != glob:
        return False
    shared = layer.site.partition("#")[0]  # the second ReLU, `relu_1`, is no second use of `relu`
    return fnmatch.fnmatchcase(layer.site, glob) or fnmatch.fnmatchcase(shared, glob)


def _parts(pattern: str) -> tuple[str, str]:
    if not isinstance(pattern, str):
        raise SpecError(f"A spec's keys are patterns (strings), not {pattern!r}.")
    glob, separator, kind = pattern.rpartition(":")
    if not separator:
        return pattern, ""
    if kind not in KINDS:
        raise SpecError(f"Pattern {pattern!r}: there is no kind {kind!r}, only {', '.join(KINDS)}.")
    return glob, kind


def _no_match(pattern: str, program: Program) -> str:
    listed = ", ".join(
        f"{s.site}:{s.kind}" for s in program.sites if s.is_matchable or ":" in pattern
    )
    return f"Pattern {pattern!r} matches no site. The sites are: {listed or '(none)'}."
