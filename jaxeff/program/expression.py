"""A canonical text for what a layer computes, so that functions are recognised by example.

`expression(layer)` is equal for two layers exactly when they run the same primitives, with the
same parameters and wiring, on inputs of the same dtypes; wrappers (`jit`, custom derivatives) don't
count. Shapes count too, except for an elementwise layer. `expression_of(jax.nn.softmax, x)` is the
text of an example, so a table of known functions is a table of examples, and a function is never
recognised by its name.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff import _compat
from jaxeff._compat import Literal
from jaxeff.program import primitives as prim
from jaxeff.program.graph import Node, Value, flatten
from jaxeff.program.layers import Layer

_IGNORED_PARAMS = {"sharding", "out_sharding", "name", "weak_type"}


def expression(layer: Layer) -> str:
    """The canonical text of a layer, inputs numbered in the order of `layer.inputs`."""
    return _text(layer.nodes, layer.inputs, layer.outputs[:1], layer.kind != "elementwise")


def expression_of(example: Callable[..., Any], *avals: Any, shaped: bool = False) -> str:
    """The canonical text of a function of arrays.

    Args:
        example: A function of arrays; a single array result.
        *avals: Anything with a shape and dtype, one per argument.
        shaped: Whether shapes count: leave it off to compare with an elementwise layer.
    """
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    closed = jax.make_jaxpr(example)(*structs)
    inputs = [Value(v.aval) for v in closed.jaxpr.invars]
    graph = flatten(closed, inputs)
    constants = {v: c for v, c in graph.constants.items()}
    return _text(graph.nodes, inputs, graph.outputs, shaped, constants)


def _text(
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    outputs: Sequence[Any],
    shaped: bool,
    constants: dict[Value, Any] | None = None,
) -> str:
    def kind(aval: Any) -> str:
        return aval.str_short() if shaped else str(aval.dtype)

    names: dict[Value, str] = {v: f"${i}:{kind(v.aval)}" for i, v in enumerate(inputs)}
    names.update({v: _number(c) for v, c in (constants or {}).items()})
    lines: list[str] = []

    def read(atom: Any) -> str:
        return _number(atom.val) if isinstance(atom, Literal) else names[atom]

    def emit(eqn: Any, operands: list[str]) -> list[str]:
        if eqn.primitive in prim.CALLS | prim.CUSTOM:
            return body(_compat.sub_jaxprs(eqn)[0], operands)
        if eqn.primitive in {prim.NAME, prim.p.stop_gradient_p, prim.p.copy_p}:
            return operands
        if eqn.primitive is prim.p.broadcast_in_dim_p and operands[0][0] not in "$%<":
            return operands
        params = ",".join(
            f"{k}={v}"
            for k, v in sorted(eqn.params.items())
            if v is not None and k not in _IGNORED_PARAMS
        )
        lines.append(f"{eqn.primitive.name}[{params}]({' '.join(operands)})")
        return [f"%{len(lines)}.{i}" for i in range(len(eqn.outvars))]

    def body(closed: Any, operands: list[str]) -> list[str]:
        env = dict(zip(closed.jaxpr.invars, operands, strict=True))
        env.update(zip(closed.jaxpr.constvars, map(_number, closed.consts), strict=True))
        for eqn in closed.jaxpr.eqns:
            arguments = [
                _number(a.val) if isinstance(a, Literal) else env[a] for a in eqn.invars
            ]
            env.update(zip(eqn.outvars, emit(eqn, arguments), strict=True))
        return [
            _number(a.val) if isinstance(a, Literal) else env[a] for a in closed.jaxpr.outvars
        ]

    for node in nodes:
        results = emit(node.eqn, [read(a) for a in node.inputs])
        names.update(zip(node.outputs, results, strict=True))
    return ";".join(lines) + "->" + " ".join(read(a) for a in outputs)


def _number(value: Any) -> str:
    array = np.asarray(value)
    return repr(array.item()) if array.ndim == 0 else f"<{array.dtype}{list(array.shape)}>"


NAMED_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "gelu": jax.nn.gelu,
    "gelu_exact": lambda x: jax.nn.gelu(x, approximate=False),
    "softplus": jax.nn.softplus,
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "abs": jnp.abs,
}

NAMED_NORMALIZATIONS: dict[str, Callable[..., Any]] = {
    "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax,
}


@functools.lru_cache(maxsize=16)
def _named_functions(dtype: str) -> dict[str, str]:
    x = jax.ShapeDtypeStruct((), jnp.dtype(dtype))
    return {expression_of(fn, x): name for name, fn in NAMED_FUNCTIONS.items()}


@functools.lru_cache(maxsize=64)
def _named_normalizations(shape: tuple[int, ...], dtype: str) -> dict[str, str]:
    x = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
    return {
        expression_of(functools.partial(fn, axis=axis), x, shaped=True): name
        for name, fn in NAMED_NORMALIZATIONS.items()
        for axis in range(len(shape))
    }


def known_name(layer: Layer) -> str:
    """The name of the `jax.nn` function a one-input layer computes, or the empty string."""
    aval = layer.inputs[0].aval
    one_float = len(layer.inputs) == 1 and jnp.issubdtype(aval.dtype, jnp.floating)
    if not one_float or len(layer.nodes) > 16:
        return ""
    if layer.kind == "elementwise":
        return _named_functions(str(aval.dtype)).get(expression(layer), "")
    table = _named_normalizations(tuple(aval.shape), str(aval.dtype))
    return table.get(expression(layer), "")
