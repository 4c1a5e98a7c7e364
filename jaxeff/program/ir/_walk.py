"""Follows what is known of values through equations, and through the parts of loops.

One loop walks a jaxpr or a list of nodes. What is followed is the caller's: arrays, signs, degrees,
dimensions, symbols. A rule says what an equation makes of its operands; here are the variables'
scope, literals, constants, and calls (`jit`, composites, custom derivatives), whose bodies stand in
their place. Loops and branches are equations like any other.

JAX keeps a loop's operands in one list and their numbers in its parameters, under other names for
each primitive. Here the list is split once, so that readers say `loop.carry`. (Of a `cond`, the
first operand is the index of the branch: `branch_operands` are the others.)

`computed_at_once`, at the end, evaluates a jaxpr that runs once and would take longer to compile.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import jax
import numpy as np

from jaxeff.core import ClosedJaxpr, JaxprEqn, Literal
from jaxeff.core import jax_internals as _compat
from jaxeff.program.ir import _primitives as prim

T = TypeVar("T")
Aux = TypeVar("Aux")
_ENTERED = prim.CALLS | prim.CUSTOM
Rule = Callable[[JaxprEqn, list[T]], Sequence[T]]
"""Gives one result per output of an equation, for one operand per input."""
Constant = Callable[[Any, Any], T]
"""Gives what is known of a literal or a variable that holds a constant, and of its value."""


class Step(Protocol):
    """An equation with variables of its own, such as a `Node`."""

    eqn: JaxprEqn
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]


def _value(_: Any, value: Any) -> Any:
    return value


def walk(
    closed: ClosedJaxpr, values: Iterable[T], rule: Rule[T], constant: Constant[T] = _value
) -> list[T]:
    """Follows values through a jaxpr.

    Args:
        closed: The jaxpr.
        values: One per input.
        rule: Called for every equation, calls too (`entering` makes one that enters them).
        constant: Called for literals, and for the jaxpr's own constants; takes their values if it
            isn't given.

    Returns:
        One value per output.
    """
    jaxpr = closed.jaxpr
    known = dict(zip(jaxpr.invars, values, strict=True))
    known.update((v, constant(v, c)) for v, c in zip(jaxpr.constvars, closed.consts, strict=True))
    equations = ((eqn, eqn.invars, eqn.outvars) for eqn in _compat.equations(jaxpr))
    return _follow(equations, known, jaxpr.outvars, rule, constant)


def walk_nodes(
    nodes: Iterable[Step],
    known: MutableMapping[Any, T],
    outputs: Iterable[Any],
    rule: Rule[T],
    constant: Constant[T] = _value,
) -> list[T]:
    """Follows values through nodes.

    Args:
        nodes: Each after those whose results it reads.
        known: Holds the values of all that they read and don't make; the others' are added.
        outputs: Values and literals whose values to return.
        rule: Called for every node's equation.
        constant: Called for literals, as in `walk`.
    """
    equations = ((node.eqn, node.inputs, node.outputs) for node in nodes)
    return _follow(equations, known, outputs, rule, constant)


def _follow(
    equations: Iterable[tuple[JaxprEqn, Sequence[Any], Sequence[Any]]],
    known: MutableMapping[Any, T],
    outputs: Iterable[Any],
    rule: Rule[T],
    constant: Constant[T],
) -> list[T]:
    def read(atom: Any) -> T:
        return constant(atom, atom.val) if isinstance(atom, Literal) else known[atom]

    for eqn, inputs, results in equations:
        known.update(zip(results, rule(eqn, [read(a) for a in inputs]), strict=True))
    return [read(a) for a in outputs]


def entering(rule: Rule[T], constant: Constant[T] = _value) -> Rule[T]:
    """Makes a rule that follows calls into their bodies, and leaves the rest to `rule`."""

    def entered(eqn: JaxprEqn, values: Sequence[T]) -> Sequence[T]:
        if eqn.primitive in _ENTERED:
            # The first jaxpr is the primal function's: a custom derivative's rules come later.
            return walk(_compat.sub_jaxprs(eqn)[0], values, entered, constant)
        return rule(eqn, list(values))

    return entered


def inside(eqn: JaxprEqn) -> Iterator[JaxprEqn]:
    """Yields an equation, or of a call those of its body, at any depth."""
    if eqn.primitive in _ENTERED:
        yield from inlined(_compat.sub_jaxprs(eqn)[0])
    else:
        yield eqn


def inlined(closed: ClosedJaxpr) -> Iterator[JaxprEqn]:
    """Yields the equations of a jaxpr, in the place of each call those of its body."""
    for eqn in _compat.equations(closed):
        yield from inside(eqn)


def evaluated_by(
    f: Callable[..., Any],
    rule_for: Callable[[ClosedJaxpr, list[Any]], Rule[Any] | None],
    array_of: Callable[[Any], Any] = lambda value: value,
) -> Callable[..., Any]:
    """Returns a function that evaluates what `f` does by a rule of the caller's.

    Args:
        f: A pure function of arrays, and of what is the same in every call, such as a mode.
        rule_for: Gives the rule for a jaxpr and the arrays it is called with; None where every
            equation stays as it is.
        array_of: Makes an array of what the rule made of a result.
    """

    @functools.wraps(f)
    def evaluated(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = jax.tree.flatten((args, kwargs))
        arrays = [leaf for leaf in leaves if hasattr(leaf, "dtype")]

        def of_arrays(*arrays: Any) -> Any:
            remaining = iter(arrays)
            filled = [next(remaining) if hasattr(leaf, "dtype") else leaf for leaf in leaves]
            positional, named = jax.tree.unflatten(structure, filled)
            return f(*positional, **named)

        closed, shapes = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        # What was read, and not `f` again: tracing a large network takes seconds.
        rule = rule_for(closed, arrays) or (lambda eqn, values: _compat.bind(eqn, *values))
        results = map(array_of, walk(closed, arrays, rule))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return evaluated


@dataclass(frozen=True)
class _Loop(Generic[T]):
    """Base of scans and while loops.

    Attributes:
        consts: What every iteration reads.
        carry: What an iteration changes, as it is before the first.
        xs: What iterations read one row of each.
        body: What an iteration computes.
    """

    consts: list[T]
    carry: list[T]
    xs: list[T]
    body: ClosedJaxpr

    def inputs(self, carry: Sequence[T], row: Sequence[T] | None = None) -> list[T]:
        """Orders the inputs of the body, for the carry and the rows of one iteration."""
        return [*self.consts, *carry, *(self.xs if row is None else row)]

    def split(self, outputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Splits the body's outputs, or the loop's, into the carry and what is stacked."""
        return list(outputs[: len(self.carry)]), list(outputs[len(self.carry) :])


@dataclass(frozen=True)
class Scan(_Loop[T]):
    """The parts of a `lax.scan`.

    Attributes:
        length: Number of runs of the body.
        reverse: Whether it begins with the last row.
        unroll: Number of iterations that one step of the compiled loop takes.
    """

    length: int
    reverse: bool
    unroll: int

    @classmethod
    def of(cls, node: Any, values: Sequence[T]) -> Scan[T]:
        """Splits a scan's operands.

        Args:
            node: The node or equation of a scan.
            values: One per operand.
        """
        q = node.params
        first, carries = _compat.scan_counts(q)
        last = first + carries
        consts, carry, xs = values[:first], values[first:last], values[last:]
        body, length, reverse, unroll = (q[n] for n in ("jaxpr", "length", "reverse", "unroll"))
        return cls([*consts], [*carry], [*xs], body, length, reverse, unroll)

    def unrolled(
        self, run: Callable[[list[T]], Sequence[T]], row: Callable[[T, int], T]
    ) -> tuple[list[T], list[list[T]]]:
        """Runs the body once for each row.

        Args:
            run: Gives the body's outputs for its inputs.
            row: Reads a row of one of the `xs`.

        Returns:
            The carry after the last iteration, and what each row made, in the order of rows.
        """
        steps, carry, rows = range(self.length), self.carry, []
        for i in reversed(steps) if self.reverse else steps:
            carry, ys = self.split(run(self.inputs(carry, [row(x, i) for x in self.xs])))
            rows.append(ys)
        return carry, rows[::-1] if self.reverse else rows


@dataclass(frozen=True)
class While(_Loop[T]):
    """The parts of a `lax.while_loop`, which has no `xs`.

    Attributes:
        test: What decides whether another iteration follows.
        test_consts: What the test reads beside the carry.
    """

    test: ClosedJaxpr
    test_consts: list[T]

    @classmethod
    def of(cls, node: Any, values: Sequence[T]) -> While[T]:
        """Splits a while loop's operands: see `Scan.of`."""
        q = node.params
        first, last = q["cond_nconsts"], q["cond_nconsts"] + q["body_nconsts"]
        fixed, consts, carry = values[:first], values[first:last], values[last:]
        return cls([*consts], [*carry], [], q["body_jaxpr"], q["cond_jaxpr"], [*fixed])

    def test_inputs(self, carry: Sequence[T]) -> list[T]:
        """Orders the inputs of the test."""
        return [*self.test_consts, *carry]


def branch_operands(eqn: Any, operands: Sequence[T]) -> Sequence[T] | None:
    """Returns what every branch of a `cond` reads, or the body of a `remat`; None for a loop."""
    if eqn.primitive is prim.p.remat_p:
        return operands
    return operands[1:] if eqn.primitive is prim.p.cond_p else None


def repetitions(node: Any) -> int:
    """Returns the number of runs of a loop's body: one for a `while`, whose length isn't known."""
    return node.params["length"] if node.primitive is prim.p.scan_p else 1


def fixed_point(
    body: Callable[[list[T]], tuple[Sequence[T], Aux]],
    carry: Sequence[T],
    join: Callable[[T, T], T],
    compared: Callable[[list[T]], Any] = list,
) -> tuple[list[T], Aux]:
    """Widens a loop's carry until an iteration leaves it as it is.

    Args:
        body: Gives the carry after an iteration, and a result beside it.
        carry: What holds before the first iteration.
        join: Gives what holds of both its arguments. Repeated, it must come to an end.
        compared: What of a carry says whether it has changed: all of it, unless arrays in it
            can't be compared.

    Returns:
        The widened carry, and the result of the last iteration.
    """
    carry = list(carry)
    while True:
        after, aux = body(carry)
        wider = [join(a, b) for a, b in zip(carry, after, strict=True)]
        if compared(wider) == compared(carry):
            return carry, aux
        carry = wider


def computed_at_once(closed: ClosedJaxpr, values: Iterable[Any]) -> list[Any]:
    """Evaluates a jaxpr equation by equation, with NumPy where its bits are those of XLA.

    What runs once, such as the conversion of each layer's parameters, takes longer to compile than
    to compute. Equations that NumPy may round otherwise, or has no name for, run in JAX. Products
    and the sum that reads them are rounded one by one, where XLA may round once.

    Args:
        closed: The jaxpr.
        values: One array per input.

    Returns:
        One array per output.
    """
    jaxpr = closed.jaxpr
    known = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    known.update(zip(jaxpr.invars, values, strict=True))
    equations = _compat.equations(closed)
    last_reader = {v: eqn for eqn in equations for v in eqn.invars if not isinstance(v, Literal)}
    for eqn in equations:
        operands = [v.val if isinstance(v, Literal) else known[v] for v in eqn.invars]
        known.update(zip(eqn.outvars, compute(eqn, operands), strict=True))
        # A network's arrays aren't all kept until its end.
        for v in {v for v in eqn.invars if not isinstance(v, Literal) and last_reader[v] is eqn}:
            if v not in jaxpr.outvars:
                del known[v]
    return [v.val if isinstance(v, Literal) else known[v] for v in jaxpr.outvars]


def compute(eqn: JaxprEqn, values: Sequence[Any]) -> list[Any]:
    """Evaluates one equation as `computed_at_once` does."""
    if eqn.primitive in _ENTERED:
        return computed_at_once(_compat.sub_jaxprs(eqn)[0], values)
    in_numpy = _IN_NUMPY.get(eqn.primitive)
    # Of the arrays that are given, which may be integers where floats were traced.
    avals: list[Any] = [v.aval for v in eqn.invars]
    types = [getattr(x, "dtype", a.dtype) for x, a in zip(values, avals, strict=True)]
    types.append(eqn.params.get("new_dtype", np.dtype(bool)))
    if in_numpy is None or not _EXACT.issuperset(types):
        return _compat.bind(eqn, *values)
    arrays = [np.asarray(x, dtype) for x, dtype in zip(values, types, strict=False)]
    with np.errstate(all="ignore"):
        return [in_numpy(eqn.params, *arrays)]


def _quotient(params: Any, x: np.ndarray, y: np.ndarray) -> Any:
    if x.dtype.kind != "f":
        return np.asarray(jax.lax.div(x, y))
    # XLA multiplies by the reciprocal of what it divides several entries by: a divisor that is
    # broadcast, by NumPy's rules or as a view whose stride is zero.
    axes = zip(y.shape, y.strides, strict=True)
    repeated = y.size < x.size or any(n > 1 and not stride for n, stride in axes)
    return x * (y.dtype.type(1) / y) if repeated else x / y


def _in_dimensions(params: Any, x: np.ndarray) -> Any:
    sizes = [1] * len(params["shape"])
    for axis, n in zip(params["broadcast_dimensions"], x.shape, strict=True):
        sizes[axis] = n
    return np.broadcast_to(x.reshape(sizes), params["shape"])


def _cast(params: Any, x: np.ndarray) -> Any:
    dtype = np.dtype(params["new_dtype"])
    if x.dtype.kind == "f" and dtype.kind in "iu":
        # NumPy leaves open what a number beyond its integers becomes.
        ends = np.iinfo(dtype)
        x = np.clip(np.nan_to_num(x.astype(np.float64)), ends.min, ends.max)
    return x.astype(dtype)


def _rounded(params: Any, x: np.ndarray) -> Any:
    to_even = params["rounding_method"] == jax.lax.RoundingMethod.TO_NEAREST_EVEN
    return np.rint(x) if to_even else np.asarray(jax.lax.round(x, params["rounding_method"]))


def _sliced(params: Any, x: np.ndarray) -> Any:
    strides = params["strides"] or (1,) * x.ndim
    bounds = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    return x[tuple(slice(start, limit, stride) for start, limit, stride in bounds)]


def _selected(which: np.ndarray, *cases: np.ndarray) -> Any:
    return np.where(which, cases[1], cases[0]) if len(cases) == 2 else np.choose(which, cases)


def _total(params: Any, x: np.ndarray) -> Any:
    axes = tuple(params["axes"])
    # The order in which floats are added is the compiler's.
    return np.asarray(jax.lax.reduce_sum(x, axes)) if x.dtype.kind == "f" else x.sum(axes, x.dtype)


def _elementwise(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, *arrays: f(*arrays)


def _reduced(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, x: f(x, axis=tuple(params["axes"]))


_EXACT = frozenset(map(np.dtype, ("bool", "int8", "int16", "int32", "uint8", "float32")))
_IN_NUMPY: dict[Any, Callable[..., Any]] = {
    **{primitive: _elementwise(f) for primitive, f in (
        (prim.p.add_p, np.add), (prim.p.sub_p, np.subtract), (prim.p.mul_p, np.multiply),
        (prim.p.max_p, np.maximum), (prim.p.min_p, np.minimum),
        (prim.p.abs_p, np.abs), (prim.p.neg_p, np.negative), (prim.NAME, np.asarray),
        (prim.p.eq_p, np.equal), (prim.p.ne_p, np.not_equal), (prim.p.lt_p, np.less),
        (prim.p.gt_p, np.greater), (prim.p.le_p, np.less_equal), (prim.p.ge_p, np.greater_equal),
        (prim.p.or_p, np.bitwise_or), (prim.p.and_p, np.bitwise_and), (prim.p.not_p, np.invert),
        (prim.p.shift_left_p, np.left_shift),
        (prim.p.clamp_p, lambda low, x, high: np.minimum(np.maximum(low, x), high)),
        (prim.p.select_n_p, _selected),
    )},
    **{primitive: _reduced(f) for primitive, f in (
        (prim.p.reduce_max_p, np.max), (prim.p.reduce_min_p, np.min),
        (prim.p.reduce_and_p, np.all), (prim.p.reduce_or_p, np.any),
    )},
    prim.p.reduce_sum_p: _total,
    prim.p.div_p: _quotient,
    prim.p.convert_element_type_p: _cast,
    prim.p.round_p: _rounded,
    prim.p.slice_p: _sliced,
    prim.p.broadcast_in_dim_p: _in_dimensions,
    prim.p.reshape_p: lambda params, x: x.reshape(params["new_sizes"]),
    prim.p.squeeze_p: lambda params, x: x.squeeze(tuple(params["dimensions"])),
    prim.p.transpose_p: lambda params, x: x.transpose(params["permutation"]),
}  # fmt: skip
"""By primitive: what computes its result of its parameters and of arrays of `_EXACT` types."""
