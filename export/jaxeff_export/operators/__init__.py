"""The probabilistic operator library: what `jaxeff.moments` computes, as joint TVM operators.

``OPERATORS`` maps the composites of an exported moment pass to them; pass it to
``import_stablehlo(source, composites=OPERATORS)``, as ``deploy`` does.
"""

from .composites import OPERATORS
from .layers import Form
from .linear import conv2d, dense

__all__ = ["OPERATORS", "Form", "conv2d", "dense"]
