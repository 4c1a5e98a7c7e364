"""The tables of cases there are, and how a part of one is chosen."""

from collections.abc import Iterable, Sequence

from experiments.harness import choose as choose_names
from tests.conformance.harnesses import Case

SUITES = {
    "harnesses": "tests.conformance.harnesses:cases",
    "programs": "tests.conformance.programs:cases",
    "values": "tests.conformance.values:cases",
}


def choose(cases: Iterable[Case], groups: Sequence[str], most: int | None) -> list[Case]:
    """Chooses the cases of some groups (all if none is named), at most so many of each.

    What is left of a group is spread evenly over it, and always the same.
    """
    cases = list(cases)
    groups = choose_names(groups, list(dict.fromkeys(case.group for case in cases)), "group")
    by_group: dict[str, list[Case]] = {}
    for case in cases:
        if case.group in groups:
            by_group.setdefault(case.group, []).append(case)
    chosen = []
    for members in by_group.values():
        count = min(len(members), most or len(members))
        chosen += [members[i * len(members) // count] for i in range(count)]
    return chosen
