"""Convolutions in the one layout that is fast everywhere: ``[batch, ..., channels]``.

The gradient of a convolution is a convolution with its axes in another order. XLA's CPU compiler
brings it to the layout of its fast kernels only at the top level of a program: inside a loop, such
as the scan over an epoch's mini-batches, it falls back to one that is several times slower.
`canonical_convolutions` states the transpositions in the program itself. A LeNet-5 training epoch
is three times faster with it, measured on two cores (jaxlib 0.10.2); the results are the same up
to float rounding.

Sharp edge: apply it last, to a function that takes its own gradients, such as an epoch. Derived
*from* its result, gradients are right but slow again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

from jaxeff._compat import ClosedJaxpr, JaxprEqn, Literal, bind, primitives


def canonical_convolutions(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn`` with each convolution in it, also in scans, in channels-last layout.

    Args:
      fn: Any function of pytrees of arrays. Calls with custom derivatives, conditionals and while
        loops inside it are left as they are.

    Returns:
      A function of the same arguments (positional) and results.
    """

    def canonical(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        outputs = _evaluate(closed, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return canonical


def quick_in_loops(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``fn`` as it should stand in a loop: with canonical convolutions on a processor.

    Inside a loop, XLA's CPU compiler has fast convolutions for that layout only; other compilers
    choose layouts themselves.
    """
    return canonical_convolutions(fn) if jax.default_backend() == "cpu" else fn


def _evaluate(closed: ClosedJaxpr, values: list[Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    env.update(zip(jaxpr.invars, values, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        env.update(zip(eqn.outvars, _apply(eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _apply(eqn: JaxprEqn, values: list[Any]) -> list[Any]:
    if eqn.primitive is primitives.conv_general_dilated_p:
        return [_convolve(eqn, *values)]
    if eqn.primitive in (primitives.jit_p, primitives.closed_call_p):
        inner = eqn.params["jaxpr" if "jaxpr" in eqn.params else "call_jaxpr"]
        return _evaluate(inner, values)
    if eqn.primitive is primitives.scan_p:
        return _scan(eqn, values)
    return bind(eqn, *values)


def _convolve(eqn: JaxprEqn, inputs: jax.Array, kernel: jax.Array) -> jax.Array:
    params = dict(eqn.params)
    numbers = params.pop("dimension_numbers")
    # Each spec is (batch, channels, *space), the kernel's (out, in, *space).
    (batch, feature, *space), (out, into, *taps), (rows, columns, *places) = (
        numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    )  # fmt: skip
    last = inputs.ndim - 1
    middle = range(1, last)
    params["dimension_numbers"] = lax.ConvDimensionNumbers(
        (0, last, *middle), (last, last - 1, *range(last - 1)), (0, last, *middle)
    )
    inputs = lax.transpose(inputs, (batch, *space, feature))
    kernel = lax.transpose(kernel, (*taps, into, out))
    result = eqn.primitive.bind(inputs, kernel, **params)
    order = (rows, *places, columns)
    return lax.transpose(result, [order.index(axis) for axis in range(last + 1)])


def _scan(eqn: JaxprEqn, values: list[Any]) -> list[Any]:
    params = eqn.params
    consts, carries = params["num_consts"], params["num_carry"]
    fixed, carry, xs = (
        values[:consts],
        values[consts : consts + carries],
        values[consts + carries :],
    )

    def body(carry: Any, x: Any) -> tuple[Any, Any]:
        outputs = _evaluate(params["jaxpr"], [*fixed, *carry, *x])
        return outputs[:carries], outputs[carries:]

    # A new scan: the parameters of the primitive change between JAX's versions.
    last, ys = lax.scan(body, carry, xs, params["length"], params["reverse"], params["unroll"])
    return [*last, *ys]
