"""What LiteRT makes of NaN, as JAX makes of it: by a test and a selection beside the operator.

LiteRT's extremes take the other entry, its conversions the end of an integer's range, and its
exponential is zero. Extremes of an array and a constant, which layers fuse as activations, and
softmaxes, which are one operator, keep NaN there as they are. Windows don't: a second pool would
be needed.

Halves are computed in float32, which holds them all: LiteRT has few operators of theirs.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff import core
from jaxeff.core import primitives as p
from jaxeff_export import onnx_files

Bind = Callable[..., Any]
"""Computes the equation of other operands."""


def softmax_parts(jaxpr: core.Jaxpr) -> set[int]:
    """Finds the equations of softmaxes that stay as they are, in the jaxprs inside as well."""
    parts = onnx_files.softmax_parts(jaxpr)
    for eqn in core.jax_internals.nested_equations(jaxpr):
        for inner in core.jax_internals.sub_jaxprs(eqn):
            parts |= onnx_files.softmax_parts(inner.jaxpr)
    return parts


def with_nan(eqn: Any, inputs: Sequence[Any]) -> Any:
    """Computes an equation of floats with JAX's results at NaN; None where LiteRT has them."""
    rule, dtype = _RULES.get(eqn.primitive), eqn.invars[0].aval.dtype
    if rule is None or not jnp.issubdtype(dtype, jnp.floating):
        return None
    half = dtype.itemsize < 4
    operands = [x.astype(np.float32) for x in inputs] if half else inputs

    def bind(*operands: Any) -> Any:
        (result,) = core.jax_internals.bind(eqn, *operands)
        return result

    result = rule(eqn, bind, *operands)
    return result.astype(eqn.outvars[0].aval.dtype) if half and result is not None else result


def _converted(eqn: Any, bind: Bind, x: Any) -> Any:
    """Converts to an integer: NaN is zero."""
    if not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.integer):
        return None
    return bind(jnp.where(x != x, jnp.zeros_like(x), x))


def _larger(eqn: Any, bind: Bind, x: Any, y: Any) -> Any:
    """Takes the larger, or smaller, of two arrays."""
    known = [not isinstance(value, jax.core.Tracer) for value in (x, y)]
    if any(known):
        return bind(x, y)
    return jnp.where((x == x) & (y == y), bind(x, y), x + y)


def _extreme(eqn: Any, bind: Bind, x: Any) -> Any:
    y, nan = bind(x), (x != x).any(eqn.params["axes"])
    return jnp.where(nan, jnp.full_like(y, jnp.nan), y)


def _place(eqn: Any, bind: Bind, x: Any) -> Any:
    """Finds the place of an extreme: that of the first NaN, where there is one."""
    nan, (axis,) = x != x, eqn.params["axes"]
    first = jnp.argmax(nan.astype(np.float32), axis).astype(eqn.outvars[0].aval.dtype)
    return jnp.where(nan.any(axis), first, bind(x))


def _running(eqn: Any, bind: Bind, x: Any) -> Any:
    """Takes the extremes of all entries so far."""
    number = (x != x).astype(x.dtype)
    nan = jax.lax.cumsum(number, eqn.params["axis"], reverse=eqn.params["reverse"]) > 0
    return jnp.where(nan, jnp.full_like(x, jnp.nan), bind(x))


def _function(eqn: Any, bind: Bind, x: Any) -> Any:
    return jnp.where(x != x, x, bind(x))


_RULES: dict[Any, Callable[..., Any]] = {
    p.convert_element_type_p: _converted,
    **dict.fromkeys((p.max_p, p.min_p), _larger),
    **dict.fromkeys((p.reduce_max_p, p.reduce_min_p), _extreme),
    **dict.fromkeys((p.argmax_p, p.argmin_p), _place),
    **dict.fromkeys((p.cummax_p, p.cummin_p), _running),
    p.logistic_p: lambda eqn, bind, x: bind(x),  # of halves: by the exponential, else
    **dict.fromkeys((p.exp_p, p.exp2_p, p.expm1_p), _function),
}
