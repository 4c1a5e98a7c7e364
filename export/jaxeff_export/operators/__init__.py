"""The operator library: probabilistic layers as joint TVM operators, and integer kernels.

``OPERATORS`` maps the composites of an exported moment pass to operators for any target;
``operators_for(target)`` adds those of integer networks, which are written for its instructions.
Pass either to ``import_stablehlo(source, composites=...)``, as ``deploy`` does.
"""

from collections.abc import Callable, Mapping
from typing import Any

from .composites import OPERATORS
from .integer import integer_operators
from .layers import Form
from .linear import conv2d, dense


def operators_for(target: Mapping[str, Any]) -> Mapping[str, Callable[..., Any]]:
    """All operators, for a TVM target dict."""
    return {**OPERATORS, **integer_operators(target)}


__all__ = ["OPERATORS", "Form", "conv2d", "dense", "operators_for"]
