"""A canonical text for what a layer computes, so that functions are recognised by example.

```python
import jax
import jax.numpy as jnp

from jaxeff.program import expression, expression_of, trace

examples = {"relu": jax.nn.relu, "silu": jax.nn.silu}
x = jax.ShapeDtypeStruct((4, 3), jnp.float32)
known = {expression_of(example, x): name for name, example in examples.items()}


def f(params, x):
    return jax.nn.silu(jnp.maximum(x @ params["fc1"], 0) @ params["fc2"])     # a ReLU by hand


program = trace(f, {"fc1": jnp.ones((3, 5)), "fc2": jnp.ones((5, 2))}, x)
found = [known.get(expression(layer)) for layer in program.layers if layer.kind == "elementwise"]
assert found == ["relu", "silu"]
```
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.core import jax_internals as _compat
from jaxeff.core import make_jaxpr
from jaxeff.core import primitives as p
from jaxeff.program.ir import (
    Axes,
    Layer,
    Node,
    Role,
    Value,
    axes,
    flatten,
    signature,
    walk,
    walk_nodes,
)
from jaxeff.program.ir import primitives as prim

Rule = Callable[..., Any]

_UNIFORM = prim.VIEWS | {p.copy_p}


@dataclass(frozen=True)
class Constant:
    """A deterministic operand: an array, and its number where it is a known uniform one."""

    array: Any
    number: float | None = None


class Unknown:
    """A value that the domain has no symbol for."""


UNKNOWN = Unknown()


class UnreadableError(Exception):
    """Raised by a rule: the result has no symbol in this domain."""


def constant(value: Any) -> Constant:
    """Returns a deterministic value as a symbol."""
    if isinstance(value, np.ndarray | np.generic | float | int | bool) and np.ndim(value) == 0:
        return Constant(np.asarray(value), float(value))
    return Constant(value)


def known_number(eqn: Any, numbers: Sequence[float | None]) -> float | None:
    """Returns the number an equation's result is everywhere, if its operands' numbers tell.

    Args:
        eqn: An equation of deterministic operands.
        numbers: For each operand the number it is everywhere, or None.
    """
    if None in numbers or not numbers or len(eqn.outvars) != 1:
        return None
    if eqn.primitive in _UNIFORM:
        return numbers[0]
    if eqn.primitive not in prim.ELEMENTWISE:
        return None
    # In the operand's dtype and by the primitive itself: the number is what the array would hold.
    scalars = [np.asarray(n, v.aval.dtype) for n, v in zip(numbers, eqn.invars, strict=True)]
    with jax.ensure_compile_time_eval():
        return float(_compat.bind(eqn, *scalars)[0])


class SymbolicReader:
    """Evaluates equations on symbols; a domain is a subclass with a table of rules.

    Equations are read on symbols in place of arrays, by one walker under every recognition.
    Functions are recognised by evaluating their equations on symbols: on text (`expression`), on
    piecewise polynomials of one variable, on the statistics of a tensor (both in `moments`). These
    are *domains*: a table from primitives to rules over the domain's symbols. Their common part is
    `SymbolicReader`. Calls and custom derivatives are followed into their bodies. Deterministic
    operands are evaluated, and remembered with the number they are everywhere. Equations that leave
    their operand as it is are passed over. A selection whose condition is known is the case it
    selects. Anything without a rule is `UNKNOWN`.

    Attributes:
        rules: From a primitive to `rule(eqn, *operands)`, the symbol of its one result. It may
            raise `UnreadableError`.
        transparent: Primitives whose result is their operand.
    """

    rules: Mapping[Any, Rule] = {}
    transparent: ClassVar[set[Any]] = {prim.NAME, p.copy_p, p.stop_gradient_p}

    def constant(self, value: Any) -> Any:
        """Returns the symbol of a deterministic value."""
        return constant(value)

    def equation(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        """Returns the symbols of an equation's results."""
        if eqn.primitive in prim.CALLS | prim.CUSTOM:
            return self.body(_compat.sub_jaxprs(eqn)[0], operands)
        if eqn.primitive in self.transparent:
            return list(operands)
        # Before the rules: a domain may know a selection's cases and not what its condition means.
        chosen = _chosen(eqn, operands)
        return self.apply(eqn, operands) if chosen is None else [chosen]

    def apply(self, eqn: Any, operands: Sequence[Any]) -> list[Any]:
        """Returns the symbols of the results of an equation that isn't a call."""
        # Known numbers are kept beside arrays: an array may be a tracer, whose value can't be read.
        if all(isinstance(o, Constant) for o in operands):
            arrays = _compat.bind(eqn, *(o.array for o in operands))
            number = known_number(eqn, [o.number for o in operands])
            return [Constant(v, number) for v in arrays]
        rule, count = self.rules.get(eqn.primitive), len(eqn.outvars)
        if rule is None or count != 1 or any(isinstance(o, Unknown) for o in operands):
            return [UNKNOWN] * count
        try:
            return [rule(eqn, *operands)]
        except UnreadableError:
            return [UNKNOWN]

    def body(self, closed: Any, operands: Sequence[Any]) -> list[Any]:
        """Returns the symbols of a jaxpr's results."""
        return walk(closed, operands, self.equation, self._constant)

    def nodes(
        self, nodes: Iterable[Node], symbols: Mapping[Any, Any], outputs: Sequence[Any]
    ) -> list[Any]:
        """Returns the symbols of `outputs`, given those of all that `nodes` read and don't make."""
        return walk_nodes(nodes, dict(symbols), outputs, self.equation, self._constant)

    def _constant(self, atom: Any, value: Any) -> Any:
        del atom
        return self.constant(value)


def _chosen(eqn: Any, operands: Sequence[Any]) -> Any:
    """Returns the case that a selection takes everywhere, None if that isn't known."""
    if eqn.primitive is not p.select_n_p or not isinstance(operands[0], Constant):
        return None
    number = operands[0].number
    return None if number is None else operands[1 + int(number)]


_IGNORED_PARAMS = {"sharding", "out_sharding", "name", "weak_type"}

NAMED_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
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
    axes: Axes

    @property
    def is_number(self) -> bool:
        return self.text[0] not in "$%<"


def expression(layer: Layer) -> str:
    """Returns the canonical text of a layer, inputs numbered in the order of `layer.inputs`.

    `expression(layer)` is equal for two layers exactly when they run the same primitives, with the
    same parameters and wiring, on inputs of the same dtypes; wrappers (`jit`, custom derivatives)
    don't count. For an elementwise layer shapes don't count either. For any other layer, axes are
    named after the data input's, so that an example matches the same function under `vmap`, which
    moves axes about. `expression_of(jax.nn.softmax, x)` is the text of an example: a table of known
    functions is a table of examples, and a function is never recognised by its name.

    Sharp edge: a function with derivatives of its own is read as its primal; what is recognised in
    it is differentiated anew.
    """
    return _text(_term_layer(layer), layer.kind != "elementwise")


def expression_of(example: Callable[..., Any], *avals: Any, shaped: bool = False) -> str:
    """Returns the canonical text of a function of arrays.

    Args:
        example: A function of arrays with a single array result; its first argument is the data.
        *avals: Anything with a shape and dtype, one per argument.
        shaped: Whether axes count: leave it off to compare with an elementwise layer.
    """
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    # The same walk as for a layer, so equal computations have equal texts by construction.
    closed, _ = make_jaxpr(example)(*structs)
    inputs = [Value(v.aval, Role.PARAM) for v in closed.jaxpr.invars]
    inputs[0].role = Role.DATA
    graph = flatten(closed, inputs)
    return _text((graph.nodes, inputs, graph.outputs, graph.constants), shaped)


def _term_layer(layer: Layer) -> tuple[Any, ...]:
    return layer.nodes, layer.inputs, layer.outputs[:1], {}


def _text(arguments: tuple[Any, ...], shaped: bool) -> str:
    writer = _Writer(shaped)
    results = writer.read(*arguments)
    return ";".join(writer.lines) + "->" + " ".join(t.text for t in results)


class _Writer(SymbolicReader):
    """The domain of texts: a line per primitive, which only axes have rules about."""

    def __init__(self, shaped: bool):
        self.shaped = shaped
        self.lines: list[str] = []
        broadcast = {prim.p.broadcast_in_dim_p: self._broadcast}
        self.rules = (
            broadcast
            if not shaped
            else {
                **dict.fromkeys(prim.MOVES, self._moved),
                **broadcast,
                **dict.fromkeys(prim.REDUCTION, self._reduced),
                **dict.fromkeys(prim.ELEMENTWISE, self._pointwise),
            }
        )

    def read(
        self,
        nodes: Iterable[Any],
        inputs: Sequence[Value],
        outputs: Sequence[Any],
        constants: Mapping[Value, Any],
    ) -> list[_Term]:
        """Returns the terms of `outputs`."""
        terms = {v: _input(i, v) for i, v in enumerate(inputs)}
        terms.update((v, _constant(c)) for v, c in constants.items())
        return self.nodes(nodes, terms, outputs)

    def constant(self, value: Any) -> _Term:
        return _constant(value)

    def apply(self, eqn: Any, operands: Sequence[_Term]) -> list[_Term]:
        rule = self.rules.get(eqn.primitive)
        return self._written(eqn, operands) if rule is None else [rule(eqn, *operands)]

    def _written(self, eqn: Any, operands: Sequence[_Term], **replaced: Any) -> list[_Term]:
        """Writes the line of an equation."""
        # Sorted by name: the order of parameters is no part of the computation.
        params = {k: v for k, v in eqn.params.items() if k not in _IGNORED_PARAMS} | replaced
        written = ",".join(f"{k}={v}" for k, v in sorted(params.items()) if v is not None)
        self.lines.append(f"{eqn.primitive.name}[{written}]({' '.join(t.text for t in operands)})")
        shapes = [tuple(getattr(v.aval, "shape", ())) for v in eqn.outvars]
        return [
            # An unknown primitive's axes are its own: `None`, until a rule relates them to
            # the input's.
            _Term(f"%{len(self.lines)}.{i}", shape, (None,) * len(shape))
            for i, shape in enumerate(shapes)
        ]

    def _broadcast(self, eqn: Any, x: _Term, *sizes: _Term) -> _Term:
        if x.is_number:
            return x
        return self._moved(eqn, x) if self.shaped else self._written(eqn, (x, *sizes))[0]

    def _moved(self, eqn: Any, x: _Term, *sizes: _Term) -> _Term:
        # A pure move of axes writes no line: under vmap it may or may not be there.
        moved = axes.followed(signature(eqn), x.axes)
        if moved is None:
            return self._written(eqn, (x, *sizes))[0]
        return _Term(x.text, tuple(eqn.outvars[0].aval.shape), moved)

    def _reduced(self, eqn: Any, x: _Term) -> _Term:
        reduced = [x.axes[i] for i in eqn.params["axes"]]
        # Axes by their names in the data input: positions change under vmap.
        known = sorted(a for a in reduced if a is not None)
        named = known if len(known) == len(reduced) else sorted(map(str, reduced))
        (result,) = self._written(eqn, (x,), axes=named)
        return result._replace(axes=axes.followed(signature(eqn), x.axes) or ())

    def _pointwise(self, eqn: Any, *operands: _Term) -> _Term:
        """Returns an operand whose axes are its own tells what they lie along."""
        shape = tuple(eqn.outvars[0].aval.shape)
        # Scalars broadcast implicitly and say nothing about axes.
        full = [t for t in operands if len(t.shape) == len(shape)]
        result = axes.united(*(t.axes for t in full)) if full else (None,) * len(shape)
        written = [_aligned(t, result) if t in full else t for t in operands]
        return self._written(eqn, written)[0]._replace(axes=result)


def _aligned(term: _Term, result: Axes) -> _Term:
    pairs = zip(term.axes, term.shape, result, strict=True)
    along = [out for source, n, out in pairs if source is None and n > 1]
    suffix = f"@{along}" if along else ""
    return term._replace(text=term.text + suffix + "!" * axes.crosses(term.axes, result))


def _input(position: int, value: Value) -> _Term:
    shape = tuple(value.aval.shape)
    axes_of_value: Axes = tuple(range(len(shape))) if value.is_data else (None,) * len(shape)
    return _Term(f"${position}:{value.aval.dtype}", shape, axes_of_value)


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
    """Returns the name of the `jax.nn` function a one-input layer computes, or the empty string."""
    aval = layer.inputs[0].aval
    # The known functions are short; the limit saves writing the text of every long region.
    one_float = len(layer.inputs) == 1 and jnp.issubdtype(aval.dtype, jnp.floating)
    if not one_float or len(layer.nodes) > 16:
        return ""
    if layer.kind == "elementwise":
        return _named_functions(str(aval.dtype)).get(expression(layer), "")
    table = _named_normalizations(tuple(aval.shape), str(aval.dtype))
    return table.get(expression(layer), "")
