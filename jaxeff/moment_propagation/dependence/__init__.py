"""Finds which random values share noise, and fuses the layers where that matters."""

from jaxeff.moment_propagation.dependence._fusion import Assumption as Assumption
from jaxeff.moment_propagation.dependence._fusion import Assumptions as Assumptions
from jaxeff.moment_propagation.dependence._fusion import FusedLayer as FusedLayer
from jaxeff.moment_propagation.dependence._fusion import Note as Note
from jaxeff.moment_propagation.dependence._fusion import Ratio as Ratio
from jaxeff.moment_propagation.dependence._fusion import WholeLayer as WholeLayer
from jaxeff.moment_propagation.dependence._fusion import fuse_dependent as fuse_dependent
from jaxeff.moment_propagation.dependence._fusion import join as join
from jaxeff.moment_propagation.dependence._fusion import with_layers as with_layers
from jaxeff.moment_propagation.dependence._lineage import APART as APART
from jaxeff.moment_propagation.dependence._lineage import SHARED as SHARED
from jaxeff.moment_propagation.dependence._lineage import (
    DependentCombination as DependentCombination,
)
from jaxeff.moment_propagation.dependence._lineage import Label as Label
from jaxeff.moment_propagation.dependence._lineage import Labels as Labels
from jaxeff.moment_propagation.dependence._lineage import Lineage as Lineage
from jaxeff.moment_propagation.dependence._lineage import follow_lineages as follow_lineages
from jaxeff.moment_propagation.dependence._lineage import identity as identity
from jaxeff.moment_propagation.dependence._lineage import (
    independent_lineages as independent_lineages,
)
from jaxeff.moment_propagation.dependence._lineage import is_common as is_common
from jaxeff.moment_propagation.dependence._lineage import union as union
from jaxeff.moment_propagation.dependence._lineage import varying_axes as varying_axes
from jaxeff.moment_propagation.dependence._pointwise import AFFINE as AFFINE
from jaxeff.moment_propagation.dependence._pointwise import degree as degree
from jaxeff.moment_propagation.dependence._pointwise import degrees as degrees
from jaxeff.moment_propagation.dependence._pointwise import is_limited as is_limited
from jaxeff.moment_propagation.dependence._pointwise import is_pointwise as is_pointwise
from jaxeff.moment_propagation.dependence._pointwise import second_order as second_order
