"""Weights on uniform grids as integers of a LiteRT file: StableHLO's quantized types.

What depends on parameters alone is computed here; a matrix of whole numbers times steps becomes a
constant of a quantized type and `uniform_dequantize`, which the converter keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxeff.core import ClosedJaxpr, jax_internals
from jaxeff_export.litert_files._substitutes import substituted
from jaxeff_export.onnx_files import CALLS, Stored, Whole, stored, whole_of


class Weight(NamedTuple):
    """A constant of the file.

    Attributes:
        values: In float.
        codes: The integers, int8, of the same shape.
        kind: The quantized type of an element, as MLIR writes it.
    """

    values: np.ndarray
    codes: np.ndarray
    kind: str


def find_weights(closed: ClosedJaxpr, given: Sequence[Any], free: Sequence[Any]) -> list[Weight]:
    """Finds the matrices on grids that meet what isn't known.

    Args:
        closed: The function.
        given: Values of its first arguments, the parameters.
        free: The shapes and dtypes of the others.
    """
    found: list[Weight] = []
    known: dict[int, Any] = {}

    def keep(value: Any, whole: Whole) -> Any:
        weight = known.get(id(value)) or _weight(whole)
        if weight is not None and id(value) not in known:
            known[id(value)] = weight
            found.append(weight)
        return value

    jax.eval_shape(lambda *xs: run(closed, [*given, *xs], keep), *free)
    return found


def run(closed: ClosedJaxpr, given: Sequence[Any], take: Callable[[Any, Whole], Any]) -> list[Any]:
    """Computes a jaxpr: what is known at once, the rest while it is traced.

    Args:
        closed: The function.
        given: The values of its arguments: arrays, or tracers of what isn't known.
        take: Function of a constant on a grid and its parts, of what stands in its place where it
            meets a tracer.
    """
    return _run(closed, given, take, {})


def _run(
    closed: ClosedJaxpr,
    given: Sequence[Any],
    take: Callable[[Any, Whole], Any],
    grids: dict[int, Whole],
) -> list[Any]:
    values: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values |= dict(zip(closed.jaxpr.invars, given, strict=True))

    def read(var: Any) -> Any:
        literal = isinstance(var, jax_internals.Literal)
        return np.asarray(var.val, var.aval.dtype) if literal else values[var]

    for eqn in closed.jaxpr.eqns:
        inputs = [read(var) for var in eqn.invars]
        if eqn.primitive in CALLS:
            made = _run(jax_internals.sub_jaxprs(eqn)[0], inputs, take, grids)
        elif any(isinstance(value, jax.core.Tracer) for value in inputs):
            other = substituted(eqn, inputs, lambda body, xs: _run(body, xs, take, grids))
            if other is None:
                taken = [take(v, grids[id(v)]) if id(v) in grids else v for v in inputs]
            made = jax_internals.bind(eqn, *taken) if other is None else other
        else:
            made = _computed(eqn, inputs, grids)
        values |= dict(zip(eqn.outvars, made, strict=True))
    return [read(var) for var in closed.jaxpr.outvars]


def _computed(eqn: Any, inputs: Sequence[Any], grids: dict[int, Whole]) -> list[Any]:
    # Now, and not as a part of the function that is being traced.
    with jax.ensure_compile_time_eval():
        made = [_known(value) for value in jax_internals.bind(eqn, *inputs)]
        if len(made) == 1:
            whole = whole_of(eqn, inputs, [grids.get(id(value)) for value in inputs])
            if whole is not None and np.array_equal(whole.values, made[0]):
                # Held by the record, so that no other array gets its id.
                grids[id(made[0])] = whole._replace(values=made[0])
    return made


def _known(array: Any) -> Any:
    # A random key has no NumPy array.
    return array if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key) else np.asarray(array)


def _weight(whole: Whole) -> Weight | None:
    found = stored(whole)
    # Steps by group have no quantized type in LiteRT, and none has a step of zero.
    if found is None or found.block is not None or np.any(found.steps <= 0):
        return None
    return Weight(whole.values, *_typed(found))


def _typed(found: Stored) -> tuple[np.ndarray, str]:
    # int8 is what LiteRT's kernels take: unsigned codes and their zeros move down by 128.
    down = 128 if found.codes.dtype == np.uint8 else 0
    codes = (found.codes.astype(np.int32) - down).astype(np.int8)
    zeros = np.ravel(found.zeros.astype(np.int32)) - down
    steps = np.ravel(found.steps).astype(float)
    each = ", ".join(f"{s!r}:{z}" for s, z in zip(steps.tolist(), zeros.tolist(), strict=True))
    if found.axis is None:
        return codes, f"!quant.uniform<i8:f32, {each}>"
    return codes, f"!quant.uniform<i8:f32:{found.axis}, {{{each}}}>"
