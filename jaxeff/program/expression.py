"""A canonical text for what a layer computes, so that functions are recognised by example.

`expression(layer)` is equal for two layers exactly when they run the same primitives, with the
same parameters and wiring, on inputs of the same dtypes; wrappers (`jit`, custom derivatives) don't
count. For an elementwise layer shapes don't count either. For any other layer, axes are named after
the data input's, so that an example matches the same function under `vmap`, which moves axes about.
`expression_of(jax.nn.softmax, x)` is the text of an example: a table of known functions is a table
of examples, and a function is never recognised by its name.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff import _compat
from jaxeff._compat import Literal
from jaxeff.program import primitives as prim
from jaxeff.program.graph import Role, Value, flatten
from jaxeff.program.layers import Layer

_IGNORED_PARAMS = {"sharding", "out_sharding", "name", "weak_type"}
_TRANSPARENT = {prim.NAME, prim.p.stop_gradient_p, prim.p.copy_p}

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


class _Term(NamedTuple):
    """The text of a value, its shape, and which axis of the data input each of its axes is."""

    text: str
    shape: tuple[int, ...]
    axes: tuple[int | None, ...]

    @property
    def is_number(self) -> bool:
        return self.text[0] not in "$%<"


def expression(layer: Layer) -> str:
    """The canonical text of a layer, inputs numbered in the order of `layer.inputs`."""
    return _text(_term_layer(layer), layer.kind != "elementwise")


def axis_order(layer: Layer) -> tuple[int | None, ...]:
    """Which axis of a layer's data input each axis of its result is; None for one it isn't."""
    return _Writer(shaped=True).run(*_term_layer(layer))[0].axes


def expression_of(example: Callable[..., Any], *avals: Any, shaped: bool = False) -> str:
    """The canonical text of a function of arrays.

    Args:
        example: A function of arrays with a single array result; its first argument is the data.
        *avals: Anything with a shape and dtype, one per argument.
        shaped: Whether axes count: leave it off to compare with an elementwise layer.
    """
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    closed = jax.make_jaxpr(example)(*structs)
    inputs = [Value(v.aval, Role.PARAM) for v in closed.jaxpr.invars]
    inputs[0].role = Role.DATA
    graph = flatten(closed, inputs)
    return _text((graph.nodes, inputs, graph.outputs, graph.constants), shaped)


def _term_layer(layer: Layer) -> tuple[Any, ...]:
    return layer.nodes, layer.inputs, layer.outputs[:1], {}


def _text(arguments: tuple[Any, ...], shaped: bool) -> str:
    writer = _Writer(shaped)
    results = writer.run(*arguments)
    return ";".join(writer.lines) + "->" + " ".join(t.text for t in results)


class _Writer:
    """Writes one line per primitive, following calls into their bodies."""

    def __init__(self, shaped: bool):
        self.shaped = shaped
        self.lines: list[str] = []

    def run(
        self,
        nodes: Sequence[Any],
        inputs: Sequence[Value],
        outputs: Sequence[Any],
        constants: dict[Value, Any],
    ) -> list[_Term]:
        terms: dict[Value, _Term] = {}
        for i, v in enumerate(inputs):
            shape = tuple(v.aval.shape)
            axes = range(len(shape)) if v.is_data else (None,) * len(shape)
            terms[v] = _Term(f"${i}:{v.aval.dtype}", shape, tuple(axes))
        terms.update({v: _constant(c) for v, c in constants.items()})

        def read(atom: Any) -> _Term:
            return _constant(atom.val) if isinstance(atom, Literal) else terms[atom]

        for node in nodes:
            results = self.equation(node.eqn, [read(a) for a in node.inputs])
            terms.update(zip(node.outputs, results, strict=True))
        return [read(a) for a in outputs]

    def body(self, closed: Any, operands: list[_Term]) -> list[_Term]:
        env = dict(zip(closed.jaxpr.invars, operands, strict=True))
        env.update(zip(closed.jaxpr.constvars, map(_constant, closed.consts), strict=True))

        def read(atom: Any) -> _Term:
            return _constant(atom.val) if isinstance(atom, Literal) else env[atom]

        for eqn in closed.jaxpr.eqns:
            results = self.equation(eqn, [read(a) for a in eqn.invars])
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(a) for a in closed.jaxpr.outvars]

    def equation(self, eqn: Any, operands: list[_Term]) -> list[_Term]:
        if eqn.primitive in prim.CALLS | prim.CUSTOM:
            return self.body(_compat.sub_jaxprs(eqn)[0], operands)
        if eqn.primitive in _TRANSPARENT:
            return operands
        if eqn.primitive is prim.p.broadcast_in_dim_p and operands[0].is_number:
            return operands
        shapes = [tuple(getattr(v.aval, "shape", ())) for v in eqn.outvars]
        moved = _moved_axes(eqn, operands[0], shapes[0]) if self.shaped and operands else None
        if moved is not None:
            return [_Term(operands[0].text, shapes[0], moved)]
        params = {k: v for k, v in eqn.params.items() if k not in _IGNORED_PARAMS}
        axes: tuple[int | None, ...] = (None,) * len(shapes[0])
        if self.shaped and eqn.primitive in prim.REDUCTION:
            (x,) = operands
            params["axes"] = sorted(str(x.axes[a]) for a in params["axes"])
            axes = tuple(a for i, a in enumerate(x.axes) if i not in eqn.params["axes"])
            if all(a.isdigit() for a in params["axes"]):
                params["axes"] = sorted(int(a) for a in params["axes"])
        elif self.shaped and eqn.primitive in prim.ELEMENTWISE:
            axes, operands = _aligned(operands, shapes[0])
        written = ",".join(f"{k}={v}" for k, v in sorted(params.items()) if v is not None)
        self.lines.append(f"{eqn.primitive.name}[{written}]({' '.join(t.text for t in operands)})")
        return [
            _Term(
                f"%{len(self.lines)}.{i}",
                shape,
                axes if shape == shapes[0] else (None,) * len(shape),
            )
            for i, shape in enumerate(shapes)
        ]


def _moved_axes(eqn: Any, x: _Term, shape: tuple[int, ...]) -> tuple[int | None, ...] | None:
    """Axes after an operation that only moves, adds or drops axes; None for any other."""
    if eqn.primitive is prim.p.transpose_p:
        return tuple(x.axes[i] for i in eqn.params["permutation"])
    if eqn.primitive is prim.p.squeeze_p:
        return tuple(a for i, a in enumerate(x.axes) if i not in eqn.params["dimensions"])
    if eqn.primitive is prim.p.broadcast_in_dim_p:
        axes: list[int | None] = [None] * len(shape)
        for source, target in enumerate(eqn.params["broadcast_dimensions"]):
            if x.shape[source] == shape[target]:
                axes[target] = x.axes[source]
        return tuple(axes)
    if eqn.primitive is prim.p.reshape_p:
        kept = [a for a, n in zip(x.axes, x.shape, strict=True) if n != 1]
        if [n for n in x.shape if n != 1] != [n for n in shape if n != 1]:
            return None
        left = iter(kept)
        return tuple(None if n == 1 else next(left) for n in shape)
    return None


def _aligned(
    operands: list[_Term], shape: tuple[int, ...]
) -> tuple[tuple[int | None, ...], list[_Term]]:
    """Axes of a pointwise result; an operand whose axes are its own tells what they lie along."""
    full = [t for t in operands if len(t.shape) == len(shape)]
    axes = tuple(
        next((t.axes[i] for t in full if t.axes[i] is not None), None) for i in range(len(shape))
    )
    written = []
    for term in operands:
        if term in full:
            pairs = zip(term.axes, term.shape, axes, strict=True)
            along = [out for own, n, out in pairs if own is None and n > 1]
            crossed = any(own not in (None, out) for own, out in zip(term.axes, axes, strict=True))
            suffix = f"@{along}" if along else ""
            term = term._replace(text=term.text + suffix + ("!" if crossed else ""))
        written.append(term)
    return axes, written


def _constant(value: Any) -> _Term:
    shape = tuple(np.shape(value))
    if shape or isinstance(value, jax.core.Tracer):
        return _Term(f"<{value.dtype}{list(shape)}>", shape, (None,) * len(shape))
    return _Term(repr(np.asarray(value).item()), (), ())


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
