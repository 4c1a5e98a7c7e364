"""A table of rules: which tensor a parameter takes, and by which function."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from jaxeff.weights._errors import WeightsError
from jaxeff.weights._layouts import Change

Rules = Mapping[str, str | tuple[str, Change]]


def check_rules(where: str, rules: Any) -> None:
    """Refuses what is no table of rules.

    Raises:
        TypeError: It is no mapping of patterns to names, or names with a function.
    """
    if not isinstance(rules, Mapping):
        raise TypeError(f"{where} must be a mapping of parameters to tensors, not {rules!r}.")
    for pattern, rule in rules.items():
        pair = isinstance(rule, tuple) and len(rule) == 2 and callable(rule[1])
        name = rule[0] if pair else rule
        if not isinstance(pattern, str) or not isinstance(name, str):
            raise TypeError(
                f"{where}: {pattern!r} must be mapped to a tensor's name, or to a tuple of it and "
                f"a function of the tensor, not {rule!r}."
            )


def apply_rules(
    rules: Rules, parameters: Iterable[str], tensors: Mapping[str, Any]
) -> dict[str, tuple[str, Change | None]]:
    """Finds the tensor and the function of each parameter that a rule names.

    Each `*` of a tensor's name stands for what the `*` in its place matched in the parameter's.

    Raises:
        WeightsError: A rule matches no parameter, two match one, or there is no such tensor.
    """
    found: dict[str, tuple[str, Change | None]] = {}
    parameters = list(parameters)
    for pattern, rule in rules.items():
        text, change = (rule, None) if isinstance(rule, str) else rule
        # The text between the wildcards literally: a bracket is part of a name.
        expression = "(.*)".join(map(re.escape, pattern.split("*")))
        matches = [(p, m) for p in parameters if (m := re.fullmatch(expression, p))]
        if not matches:
            raise WeightsError(
                f"the rule {pattern!r} matches no parameter of {', '.join(parameters[:20])}."
            )
        for parameter, match in matches:
            if parameter in found:
                raise WeightsError(f"two rules match {parameter!r}; one of them is {pattern!r}.")
            tensor = text
            for part in match.groups():
                tensor = tensor.replace("*", part, 1)
            if tensor not in tensors:
                raise WeightsError(f"the rule {pattern!r} asks for {tensor!r}, which isn't there.")
            found[parameter] = (tensor, change)
    return found


def select(where: str, patterns: Sequence[str], names: Iterable[str]) -> set[str]:
    """Finds the names that patterns match.

    Raises:
        WeightsError: A pattern matches none.
    """
    names = list(names)
    found: set[str] = set()
    for pattern in patterns:
        matches = {name for name in names if fnmatchcase(name, pattern)}
        if not matches:
            raise WeightsError(f"{where}: {pattern!r} matches none of {', '.join(names[:20])}.")
        found |= matches
    return found
