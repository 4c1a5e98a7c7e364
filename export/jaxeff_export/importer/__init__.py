"""StableHLO to Relax: ``import_stablehlo``, and the errors it raises.

How it works (``README.md`` beside this file says more): ``_source`` guards and parses, and
``_expansions`` rewrites what is several operations; ``_graph_builder`` makes one flat ``_graph`` of
it; ``_emitter`` walks that and asks the rule of each operation. Rules are kept one family to a
file: ``_arithmetic`` and ``_elementary`` for elementwise operations, the others in ``rules``. Those
whose kernels are imperative write them with ``_loops``.
"""

from jaxeff_export.importer._graph import StableHLOParseError as StableHLOParseError
from jaxeff_export.importer._graph import UnsupportedOp as UnsupportedOp
from jaxeff_export.importer._graph import UnsupportedOpError as UnsupportedOpError
from jaxeff_export.importer._module import import_stablehlo as import_stablehlo
