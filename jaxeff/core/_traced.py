"""Traces functions into jaxprs of the primitives that every supported version of JAX has.

A minor version of JAX may add primitives for what older ones write as several equations: in newer
ones the derivative of `tanh` is `one_minus_square` instead of an addition, a subtraction and a
product. Programs are read through `make_jaxpr` below, which writes such equations out, so that a
new primitive needs one line here and no rule in any transform.

A transform reads its function in every call that isn't under `jax.jit`. `read_once(f)` keeps what
is read for shapes that it has seen, as long as the transform's result lives.

Sharp edge: as under `jax.jit`, what a function reads of global names counts as it was at first.
"""

import functools
import math
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxeff.core import _jax_internals as _compat
from jaxeff.core._jax_internals import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Primitive


def _log2(x: Any, accuracy: Any = None) -> Any:
    return jax.lax.div(jax.lax.log(x, accuracy=accuracy), x.dtype.type(math.log(2)))


def _one_minus_square(x: Any) -> Any:
    # As JAX computes it, and not 1 - x * x, which loses digits where x is near one.
    one = x.dtype.type(1)
    return jax.lax.mul(jax.lax.add(x, one), jax.lax.sub(one, x))


def _polynomial(x: Any, *coefficients: Any, unroll: Any = None) -> Any:
    del unroll  # how JAX compiles it: the same products and sums in a loop
    total = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _unstack(x: Any, axis: int) -> list[Any]:
    rows = (jax.lax.slice_in_dim(x, i, i + 1, axis=axis) for i in range(x.shape[axis]))
    return [jax.lax.squeeze(row, (axis,)) for row in rows]


_BY_NAME: dict[str, Callable[..., Any]] = {
    "log2_p": _log2,
    "one_minus_square_p": _one_minus_square,
    "polynomial_p": _polynomial,
    "unstack_p": _unstack,  # what a loop over the rows of an array is in newer versions
}
EXPANSIONS: dict[Primitive, Callable[..., Any]] = {
    primitive: _BY_NAME[name] for name, primitive in _compat.newer_primitives().items()
}
"""By newer primitive: the same function of operands and parameters in older primitives."""


def make_jaxpr(f: Callable[..., Any]) -> Callable[..., tuple[ClosedJaxpr, Any]]:
    """Traces like `jax.make_jaxpr(f, return_shape=True)`, with newer primitives written out."""
    trace = jax.make_jaxpr(f, return_shape=True)

    def traced(*args: Any, **kwargs: Any) -> tuple[ClosedJaxpr, Any]:
        closed, shapes = trace(*args, **kwargs)
        return closed.replace(jaxpr=rewritten(closed.jaxpr, EXPANSIONS, _expanded)), shapes

    return traced


_MOST_KEPT = 16
"""Readings that a function keeps: of the last shapes it was read at."""


class _ReadOnce:
    """A function that keeps what it was read as, for each of the shapes it was read at."""

    def __init__(self, f: Callable[..., Any]) -> None:
        functools.update_wrapper(self, f, updated=())
        self._f = f
        self._kept: dict[Any, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._f(*args, **kwargs)

    def reading(self, form: Any, read: Callable[[], tuple[Any, Iterable[Any]]]) -> Any:
        try:
            kept = self._kept.get(form)
        except TypeError:  # what has no hash may change from call to call
            return read()[0]
        if kept is None:
            kept, constants = read()
            # A value of a trace around this one means nothing after it.
            if not any(isinstance(c, jax.core.Tracer) for c in constants):
                # Another thread may do the same: one of two equal readings stays.
                for oldest in [*self._kept][: 1 - _MOST_KEPT]:
                    self._kept.pop(oldest, None)
                self._kept[form] = kept
        return kept


def read_once(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the same function, of which `kept_reading` keeps what it was read as.

    ```python
    import jax.numpy as jnp

    from jaxeff.core import kept_reading, make_jaxpr, read_once

    f = read_once(lambda x: 2 * x)
    first, again = (
        kept_reading(f, x, {}, lambda: (make_jaxpr(f)(x), ())) for x in (jnp.ones(3), jnp.zeros(3))
    )
    assert again is first
    ```
    """
    return f if isinstance(f, _ReadOnce) else _ReadOnce(f)


_READ_WHILE_ALIVE: weakref.WeakKeyDictionary[Any, _ReadOnce] = weakref.WeakKeyDictionary()


def read_while_alive(f: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the same result of `read_once` for the same function, as long as that lives.

    It is for calls of the host, which are given a function anew each time: what they compile for it
    is kept by `kept_reading` until the function goes. One that can't be referred to weakly, or has
    no hash, is read in every call.
    """
    if isinstance(f, _ReadOnce):
        return f
    try:
        kept = _READ_WHILE_ALIVE.get(f)
        living = weakref.ref(f)
    except TypeError:
        return _ReadOnce(f)
    if kept is None:

        def call(*args: Any, **kwargs: Any) -> Any:
            # Whoever calls holds the function; what is kept for it mustn't, or it would never go.
            alive: Any = living()
            return alive(*args, **kwargs)

        functools.update_wrapper(call, f, updated=())
        del call.__wrapped__  # type: ignore[attr-defined]
        kept = _ReadOnce(call)
        _READ_WHILE_ALIVE[f] = kept
    return kept


def kept_reading(
    f: Callable[..., Any],
    args: Any,
    static: Mapping[str, Any],
    read: Callable[[], tuple[Any, Iterable[Any]]],
) -> Any:
    """Returns what a function was read as, of a result of `read_once` for new shapes alone.

    Args:
        f: The function.
        args: Arrays that it is read at, or their shapes.
        static: What else the reading depends on.
        read: Gives the reading and what it holds of values; it depends on the other arguments and
            on nothing else.
    """
    if not isinstance(f, _ReadOnce):
        return read()[0]
    leaves, structure = jax.tree.flatten(args)
    types = tuple(map(_type, leaves))
    return f.reading((structure, types, *static.items(), _compat.trace_settings()), read)


def _type(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf.shape, leaf.dtype, leaf.weak_type, leaf.sharding
    return jax.typeof(leaf)


def rewritten(
    jaxpr: Jaxpr,
    primitives: Container[Primitive],
    rewrite: Callable[[JaxprEqn], Sequence[JaxprEqn]],
) -> Jaxpr:
    """Returns a jaxpr with other equations in place of those of some primitives, at any depth.

    Args:
        jaxpr: The jaxpr. It is returned as it is if it has none of the primitives: a copy would be
            another jaxpr to JAX's caches.
        primitives: The primitives.
        rewrite: Gives the equations that take an equation's place, with the same results.
    """
    if not any(primitive in primitives for primitive in _compat.primitives_in(jaxpr)):
        return jaxpr

    def inside(value: Any) -> Any:
        if isinstance(value, ClosedJaxpr):
            return value.replace(jaxpr=rewritten(value.jaxpr, primitives, rewrite))
        if isinstance(value, Jaxpr):
            return rewritten(value, primitives, rewrite)
        return tuple(map(inside, value)) if type(value) is tuple else value

    def changed() -> Iterator[JaxprEqn]:
        for eqn in _compat.equations(jaxpr):
            eqn = eqn.replace(params={name: inside(value) for name, value in eqn.params.items()})
            yield from rewrite(eqn) if eqn.primitive in primitives else (eqn,)

    return jaxpr.replace(eqns=[*changed()])


def _expanded(eqn: JaxprEqn) -> list[JaxprEqn]:
    """Writes out an equation of a newer primitive; the equations keep its place in the source."""
    avals: list[Any] = [v.aval for v in eqn.invars]
    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    fn = EXPANSIONS[eqn.primitive]
    inner = jax.make_jaxpr(lambda *operands: fn(*operands, **eqn.params))(*structs).jaxpr
    renamed = dict(zip([*inner.invars, *inner.outvars], [*eqn.invars, *eqn.outvars], strict=True))

    def rename(variable: Any) -> Any:
        return variable if isinstance(variable, Literal) else renamed.get(variable, variable)

    return [
        part.replace(
            invars=[*map(rename, part.invars)],
            outvars=[*map(rename, part.outvars)],
            source_info=eqn.source_info,
            ctx=eqn.ctx,
        )
        for part in _compat.equations(inner)
    ]


def widened(x: Any) -> jax.Array:
    """Returns an array of floats in float32 at least; others as they are.

    In float16 the square of 256 is infinite and that of 1e-4 zero, bfloat16 has eight bits for a
    sum of thousands: norms, distances and mean squares of such arrays are computed in float32.
    """
    x = jnp.asarray(x)
    narrow = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize < 4
    return x.astype(jnp.float32) if narrow else x
