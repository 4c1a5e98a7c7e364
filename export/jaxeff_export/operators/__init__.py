"""The operator library: probabilistic layers as joint TVM operators, and integer kernels.

``OPERATORS`` maps the composites of an exported moment pass to operators for any target;
``operators_for(target)`` adds those of integer networks, which are written for its instructions.
Pass either to ``import_stablehlo(source, composites=...)``, as ``deploy`` does.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jaxeff_export.operators._attention import attention_operators
from jaxeff_export.operators._linear import OPERATORS as OPERATORS
from jaxeff_export.operators._linear import Form as Form
from jaxeff_export.operators._linear import Optimizations as Optimizations
from jaxeff_export.operators._linear import conv2d as conv2d
from jaxeff_export.operators._linear import dense as dense
from jaxeff_export.operators._linear import dense_kernel as dense_kernel
from jaxeff_export.operators._linear import dense_module as dense_module
from jaxeff_export.operators.integer import integer_operators


def operators_for(
    target: Mapping[str, Any], any_batch: bool = False
) -> Mapping[str, Callable[..., Any]]:
    """Returns all operators for a TVM target dict; for any batch, those that fix no batch size."""
    integers = integer_operators(target, any_batch=any_batch)
    if any_batch:
        return integers
    return {**OPERATORS, **attention_operators(target), **integers}
