"""StableHLO to Relax: ``import_stablehlo``, and the errors it raises.

How it works: ``source`` parses; ``graph`` flattens the module; ``emitter`` walks the graph and asks
the rule of each operation, kept one family to a file (``scalar_*`` and ``numerics`` for elementwise
ones, ``shapes``, ``contraction``, ``convolution``, ``reduction``, ``indexing``; ``scattering``,
``sorting``, ``linalg``, ``random_bits`` and ``fourier``, whose kernels are written with ``loops``;
``complex_numbers``, which makes pairs of real tensors of complex ones while the graph is built).
"""

from .errors import StableHLOParseError, UnsupportedOp, UnsupportedOpError
from .module import import_stablehlo

__all__ = ["StableHLOParseError", "UnsupportedOp", "UnsupportedOpError", "import_stablehlo"]
