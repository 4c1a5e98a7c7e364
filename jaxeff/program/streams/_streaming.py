"""`streaming`: a function of a sliding window as a step that computes what is new alone.

```python
import jax
import jax.numpy as jnp
from flax import nnx
import jaxeff

net = nnx.Sequential(
    nnx.Conv(4, 8, (3,), padding="VALID", rngs=nnx.Rngs(0)),
    nnx.relu,
    lambda x: x.mean(1),
    nnx.Linear(8, 3, rngs=nnx.Rngs(1)),
)
f, params = jaxeff.functional(net)                        # f(params, window), [1, 20, 4]
sound = jax.random.normal(jax.random.key(0), (1, 24, 4))
step, state = jaxeff.streaming(f, params, sound[:, :20], axis=1, hop=2)
for at in (20, 22):
    logits, state = step(params, sound[:, at : at + 2], state)
assert jnp.allclose(logits, f(params, sound[:, 4:]), atol=1e-6)
```

The step is a pure function like any other: quantized, converted by `integer`, and deployed with
`state=("state",)`. Rounded to codes, its result has the bits of the whole window's.

Sharp edges:
    Convolutions and pooling over time must not be padded: a window's first frames would be other
    than those of a stream. Means and products over all of the window keep the frames before them.
    Gradient rules of one's own (`custom_jvp`) are read as what they compute.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxeff.core import (
    Literal,
    export_composite_p,
    function_of_form,
    make_jaxpr,
    parameter_tree,
    real_array,
    static_integer,
    validate,
)
from jaxeff.core import jax_internals as _compat
from jaxeff.core import primitives as p
from jaxeff.program.ir import primitives as prim
from jaxeff.program.streams._rules import RULES, refuse, whole_window
from jaxeff.program.streams._windows import (
    Asked,
    Given,
    RepeatedValue,
    StreamedValue,
    StreamError,
    Value,
    WholeWindow,
    Windows,
    array_of,
)

__all__ = ["StreamError", "streaming"]

INTEGER = "jaxeff.q_"
"""What the names of layers of codes begin with."""
State = tuple[Array, ...]
Step = Callable[[Any, Array, State], tuple[Any, State]]


@validate(
    f=function_of_form("f(params, window)"),
    params=parameter_tree,
    window=real_array(),
    axis=static_integer(-np.inf),  # the body knows the window's axes
    hop=static_integer(1),
)
def streaming(
    f: Callable[[Any, Array], Any], params: Any, window: Array, axis: int = 1, hop: int = 1
) -> tuple[Step, State]:
    """Makes a step of a function of a sliding window.

    Args:
        f: A pure function `f(params, window)`; what it returns has no axis of time.
        params: Parameters of `f`.
        window: A whole window, such as silence, after which the stream begins.
        axis: The window's axis of time, from the end if it is negative.
        hop: New frames of each step; all strides over time divide it.

    Returns:
        `step(params, frames, state) -> (result, state)`, where frames are a window's newest `hop`,
        and the state after `window`. The result is `f` of the last frames, as many as a window
        has.

    Raises:
        StreamError: An operation isn't the same at all times; it is named, with the way out.
        ValueError: There is no such axis, or a hop is longer than a window.
    """
    axis = axis + window.ndim if axis < 0 else axis
    if not 0 <= axis < window.ndim:
        raise ValueError(f"streaming: axis {axis} of a window of shape {window.shape}")
    if not 1 <= hop <= window.shape[axis]:
        raise ValueError(f"streaming: hop={hop} of a window of {window.shape[axis]} frames")
    length, whole = window.shape[axis], jax.ShapeDtypeStruct(window.shape, window.dtype)

    def run(params: Any, frames: Array, state: State | None) -> tuple[Any, State]:
        # Traced at the whole window's shape, whatever is computed of it: lengths are known by it.
        traced, shape = make_jaxpr(f)(params, whole)
        windows = Windows(state)
        given = [*jax.tree.leaves(params), StreamedValue(frames, axis, length, hop)]
        outputs = _evaluate(traced.jaxpr, traced.consts, given, windows)
        if any(isinstance(y, StreamedValue) for y in outputs):
            raise StreamError(
                "streaming: a result has an axis of time still; reduce over it, or return the "
                "newest frame"
            )
        made = map(array_of, outputs)
        return jax.tree.unflatten(jax.tree.structure(shape), made), tuple(windows.state)

    newest = (*window.shape[:axis], hop, *window.shape[axis + 1 :])

    def step(params: Any, frames: Array, state: State) -> tuple[Any, State]:
        # More or fewer would be computed with, and make a window of other lengths.
        if jnp.shape(frames) != newest:
            raise ValueError(
                f"streaming: frames of shape {jnp.shape(frames)}; a step takes {newest}, the "
                f"newest {hop} of a window"
            )
        return run(params, frames, state)

    begun = jax.jit(lambda params, window: run(params, window, None)[1])(params, window)
    # Refused here, and not in the first step: one is read without being computed.
    jax.eval_shape(step, params, jax.ShapeDtypeStruct(newest, window.dtype), begun)
    return step, begun


def _evaluate(
    jaxpr: Any, consts: Sequence[Any], values: Sequence[Value], windows: Windows
) -> list[Value]:
    known: dict[Any, Value] = dict(zip(jaxpr.constvars, consts, strict=True))
    known |= dict(zip(jaxpr.invars, values, strict=True))

    def read(atom: Any) -> Value:
        return atom.val if isinstance(atom, Literal) else known[atom]

    for eqn in jaxpr.eqns:
        given = [read(atom) for atom in eqn.invars]
        made = _equation(eqn, given, windows)
        known |= dict(zip(eqn.outvars, made, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _equation(eqn: Any, given: Sequence[Value], windows: Windows) -> Sequence[Value]:
    inner = _body(eqn)
    if eqn.primitive is export_composite_p and str(eqn.params["operator"]).startswith(INTEGER):
        return _composite(eqn, given, windows)
    if inner is not None:
        return _evaluate(inner.jaxpr, inner.consts, given, windows)
    if any(isinstance(v, WholeWindow) for v in given):
        return whole_window(eqn, given, windows)
    if any(isinstance(v, StreamedValue) for v in given):
        rule = RULES.get(eqn.primitive)
        if rule is None:
            raise refuse(eqn, "isn't known to be the same at all times; keep it out of the stream")
        return rule(eqn, given, windows)
    made = _compat.bind(eqn, *map(array_of, given))
    if eqn.primitive is p.broadcast_in_dim_p:
        return [RepeatedValue(made[0], _broadcast_axes(eqn))]
    return made


def _composite(eqn: Any, given: Sequence[Value], windows: Windows) -> Sequence[Value]:
    """A layer of codes stays one, for the kernels that know it: its frames come from outside.

    So the state holds its codes, and not what it makes of them.
    """
    inner = eqn.params["jaxpr"]
    made: list[Value] = []
    streams = [v for v in given if isinstance(v, StreamedValue)]
    if any(isinstance(v, WholeWindow) for v in given):
        return whole_window(eqn, given, windows)
    if not streams:
        return _compat.bind(eqn, *map(array_of, given))

    def run(of: Windows, arrays: Sequence[Any]) -> list[Value]:
        pairs = zip(given, arrays, strict=True)
        put = [v.like(array) if isinstance(v, StreamedValue) else array for v, array in pairs]
        return _evaluate(inner.jaxpr, inner.consts, put, of)

    asked = Asked(windows.begun)
    operands = list(map(array_of, given))
    jax.eval_shape(lambda *arrays: [array_of(y) for y in run(asked, arrays)], *operands)
    if len(asked.asked) > 1 or (asked.asked and streams[0] is not given[0]):
        return _evaluate(inner.jaxpr, inner.consts, given, windows)
    if asked.asked:
        operands[0] = windows.extended(streams[0], asked.asked[0])

    def fn(*arrays: Any) -> list[Any]:
        made[:] = run(Given(() if windows.begun else None), arrays)
        return [array_of(y) for y in made]

    results = _compat.export_composite(
        fn, operands, eqn.params["operator"], dict(eqn.params["attributes"])
    )
    # Numbers of the composite, and what its equations say of them over time.
    return [
        dataclasses.replace(y, value=z) if y is not array_of(y) else z
        for y, z in zip(made, results, strict=True)
    ]


def _broadcast_axes(eqn: Any) -> frozenset[int]:
    """Lists the axes along which all numbers are the same."""
    shape, kept = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    sizes: Mapping[int, int] = dict(zip(kept, eqn.invars[0].aval.shape, strict=True))
    return frozenset(a for a in range(len(shape)) if sizes.get(a, 1) == 1)


def _body(eqn: Any) -> Any:
    """Returns the equations of a call, or None."""
    if eqn.primitive in prim.CALLS:
        return eqn.params.get("jaxpr") or eqn.params.get("call_jaxpr")
    if eqn.primitive in prim.CUSTOM:
        return eqn.params.get("call_jaxpr") or eqn.params.get("fun_jaxpr")
    return None
