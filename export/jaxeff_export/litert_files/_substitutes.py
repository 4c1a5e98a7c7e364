"""What stands in a LiteRT file for operations that its converter writes in no readable form.

The converter has no way to write the body of a loop, and LiteRT's interpreter refuses the scatters
it writes: short scans become their steps, and rows that are added at indices a matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.lax import GatherScatterMode

from jaxeff.core import ClosedJaxpr, JaxprEqn
from jaxeff.core import primitives as p
from jaxeff.program.ir import Scan
from jaxeff_export.onnx_files import LONGEST, fill_of

_WAY_OUT = "deploy and to_onnx take it."
Run = Callable[[ClosedJaxpr, Sequence[Any]], list[Any]]
"""Computes a jaxpr."""


class LitertError(ValueError):
    """A function has what LiteRT or its converter doesn't take."""


def substituted(eqn: JaxprEqn, inputs: Sequence[Any], run: Run) -> list[Any] | None:
    """Computes an equation in another way; None for one that can be written as it is.

    Args:
        eqn: The equation.
        inputs: Values of its operands.
        run: Computes the body of a loop.

    Raises:
        LitertError: There is no other way.
    """
    if eqn.primitive is p.scan_p:
        return _unrolled(Scan.of(eqn, inputs), run)
    if eqn.primitive is p.while_p:
        raise LitertError(f"to_litert: the converter writes no loops (`while`); {_WAY_OUT}")
    if eqn.primitive is p.scatter_add_p:
        return [_added(eqn, *inputs)]
    if eqn.primitive is p.gather_p:
        return [_taken(eqn, *inputs)]
    return None


def _taken(eqn: JaxprEqn, x: Any, indices: Any) -> Any:
    """Takes entries at clamped places; LiteRT's interpreter stops at one beyond the array.

    XLA clamps those that JAX is promised to be inside, too (`x[i]`).
    """
    q = eqn.params
    numbers = q["dimension_numbers"]
    axes = numbers.start_index_map
    room = jnp.array([jnp.shape(x)[i] - q["slice_sizes"][i] for i in axes], indices.dtype)
    inner = jnp.clip(indices, 0, room)
    taken = eqn.primitive.bind(
        x, inner, **{**q, "mode": GatherScatterMode.PROMISE_IN_BOUNDS, "fill_value": None}
    )
    if q["mode"] is not GatherScatterMode.FILL_OR_DROP:
        return taken
    inside = (inner == indices).all(-1)
    batch = [i for i in range(taken.ndim) if i not in numbers.offset_dims]
    inside = jax.lax.broadcast_in_dim(inside, taken.shape, batch)
    return jnp.where(inside, taken, fill_of(q["fill_value"], taken.dtype))


def _unrolled(scan: Scan[Any], run: Run) -> list[Any]:
    if scan.length > LONGEST:
        raise LitertError(
            f"to_litert: a scan of {scan.length} steps; the converter writes no loops, and at most "
            f"{LONGEST} steps are written one after the other. Take fewer a call; {_WAY_OUT}"
        )
    carry, made = scan.unrolled(lambda given: run(scan.body, given), lambda x, i: x[i])
    return [*carry, *(jnp.stack(ys) for ys in zip(*made, strict=True))]


def _added(eqn: JaxprEqn, x: Any, indices: Any, updates: Any) -> Any:
    """Adds rows to those of another array that indices name, as sums of segments do."""
    numbers, rest = eqn.params["dimension_numbers"], tuple(range(1, jnp.ndim(updates)))
    kept = {GatherScatterMode.FILL_OR_DROP, GatherScatterMode.PROMISE_IN_BOUNDS}
    rows = (
        numbers.update_window_dims == rest
        and numbers.inserted_window_dims == numbers.scatter_dims_to_operand_dims == (0,)
        and jnp.shape(updates)[1:] == jnp.shape(x)[1:]
        and eqn.params["mode"] in kept
    )
    if not rows:
        raise LitertError(
            "to_litert: a scatter that adds anything but whole rows (`.at[indices].add(rows)`, "
            f"segment_sum), which LiteRT's interpreter refuses; {_WAY_OUT}"
        )
    # An index out of bounds is a row of zeros: its update is dropped, as the scatter does.
    places = jax.nn.one_hot(indices[:, 0], jnp.shape(x)[0], dtype=x.dtype)
    return x + jnp.tensordot(places, updates, ([0], [0]))
