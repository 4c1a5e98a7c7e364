"""Names of a file's weights as paths of parameters, and of the layers that read them."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxeff.compression import LayerQuantization


class WeightPaths(NamedTuple):
    """Where weights are among the parameters.

    Attributes:
        by_name: Paths by the file's names.
        keys: The keys of paths that aren't their parts between slashes.
    """

    by_name: dict[str, str]
    keys: dict[str, tuple[str, ...]]


def paths_of(names: Sequence[str]) -> WeightPaths:
    """Cuts names at "/" and "."; names that would stand in each other's way stay whole."""
    cut = {name: "/".join(filter(None, re.split(r"[/.]", name))) or name for name in names}
    count = Counter(cut.values())
    inner = {path[:i] for path in cut.values() for i, c in enumerate(path) if c == "/"}
    crossed = {p for p in cut.values() if count[p] > 1 or p in inner}

    def stands_alone(path: str) -> bool:
        above = [path[:i] for i, c in enumerate(path) if c == "/"]
        return not crossed & {path, *above}

    uncut = [name for name, path in cut.items() if not stands_alone(path)]
    return WeightPaths(cut | {n: n for n in uncut}, {name: (name,) for name in uncut})


def settings_by_site(
    paths: Mapping[str, str],
    products: Iterable[str],
    settings: Sequence[tuple[str, LayerQuantization]],
) -> dict[str, LayerQuantization]:
    """Returns the settings of weights by the names that layers have by these weights.

    Args:
        paths: Paths of parameters by their names in the file.
        products: Names of those that may be weights of products.
        settings: Each product's weight and setting, in the order of the program.
    """
    modules = {name: path.rpartition("/")[0] or path for name, path in paths.items()}
    # A module of one product gives it its name, and each weight of several names its own.
    count = Counter(modules[name] for name in products)
    uses: Counter[str] = Counter()
    spec = {}
    for name, setting in settings:
        site = modules[name] if count[modules[name]] == 1 else paths[name]
        spec[f"{site}#{uses[site]}" if uses[site] else site] = setting
        uses[site] += 1
    return spec


def scope_of(name: str) -> str:
    """Makes a name of the file one that a site can have."""
    # Colons and brackets mean something in the names of sites.
    return re.sub(r"[^\w./-]", "_", name).strip("/") or "node"
