"""Finds which random values share noise, and fuses the layers where that matters."""

from jaxeff.moment_propagation.dependence._assumption import Assumption, Assumptions, Note, Ratio
from jaxeff.moment_propagation.dependence._expansion import degree, second_order
from jaxeff.moment_propagation.dependence._fusion import (
    FusedLayer,
    WholeLayer,
    fuse_dependent,
    join,
    with_layers,
)
from jaxeff.moment_propagation.dependence._lineage import (
    APART,
    SHARED,
    DependentCombination,
    Labels,
    Lineage,
    identity,
    union,
)
from jaxeff.moment_propagation.dependence._mixed_streams import (
    mixed_stream,
    warn_of_mixed,
)
from jaxeff.moment_propagation.dependence._own_sums import (
    divided_by_own_sums,
    warn_of_own_sums,
)
from jaxeff.moment_propagation.dependence._pointwise import (
    AFFINE,
    degrees,
    is_limited,
    is_pointwise,
)
from jaxeff.moment_propagation.dependence._reuse import reused, warn_of_reuse
from jaxeff.moment_propagation.dependence._tracking import independent_lineages, walk
from jaxeff.moment_propagation.dependence._variation import varying_axes

__all__ = [
    "AFFINE",
    "APART",
    "SHARED",
    "Assumption",
    "Assumptions",
    "DependentCombination",
    "FusedLayer",
    "Labels",
    "Lineage",
    "Note",
    "Ratio",
    "WholeLayer",
    "degree",
    "degrees",
    "divided_by_own_sums",
    "fuse_dependent",
    "identity",
    "independent_lineages",
    "is_limited",
    "is_pointwise",
    "join",
    "mixed_stream",
    "reused",
    "second_order",
    "union",
    "varying_axes",
    "walk",
    "warn_of_mixed",
    "warn_of_own_sums",
    "warn_of_reuse",
    "with_layers",
]
