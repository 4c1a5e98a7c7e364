"""StableHLO to Relax: ``import_stablehlo``, and the errors it raises.

How it works (``README.md`` beside this file says more): ``reading`` parses and guards;
``graph_builder`` makes one flat ``graph`` of it; ``emitter`` walks that and asks the rule of each
operation. Rules are kept one family to a file: ``scalar`` for elementwise operations; ``shapes``,
``contraction``, ``convolution``, ``reduction``, ``indexing``; ``scattering``, ``sorting``,
``linalg``, ``random_bits`` and ``fourier``, whose kernels are written with ``loops``; ``control``
for loops and branches; ``complex_numbers``, which makes pairs of real tensors of complex ones.
"""

from jaxeff_export.importer._module import import_stablehlo
from jaxeff_export.importer.reading import StableHLOParseError, UnsupportedOp, UnsupportedOpError

__all__ = ["StableHLOParseError", "UnsupportedOp", "UnsupportedOpError", "import_stablehlo"]
