"""ONNX's branches and loops, whose bodies are graphs."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff_export.onnx_files._operators import Call, Value, is_known, known

UNROLLED = 128
"""Steps of a loop that are computed one after the other."""


def _if(call: Call, condition: Value) -> tuple[Value, ...]:
    if is_known(condition):
        branch = "then_branch" if np.asarray(condition).item() else "else_branch"
        return tuple(call.graph(branch, ()))

    def branch_of(name: str) -> Callable[[], tuple[Any, ...]]:
        return lambda: tuple(jax.tree.map(jnp.asarray, call.graph(name, ())))

    flag = jnp.reshape(condition, ()).astype(bool)
    return jax.lax.cond(flag, branch_of("then_branch"), branch_of("else_branch"))


def _loop(call: Call, trips: Value, condition: Value, *start: Value) -> tuple[Value, ...]:
    """Computes ONNX's Loop: `for i < trips and condition`, with results stacked over steps."""
    count = None if trips is None else int(known(call, trips, "the number of steps"))
    start_condition = np.asarray(True) if condition is None else condition
    stacked = len(call.wanted) - len(start)

    def step(
        i: Value, flag: Value, carry: Sequence[Value]
    ) -> tuple[Value, list[Value], list[Value]]:
        flag, *rest = call.graph("body", [i, flag, *carry])
        return flag, rest[: len(carry)], rest[len(carry) :]

    if count is None or count <= UNROLLED:
        results: list[list[Value]] = [[] for _ in range(stacked)]
        flag, carry, i = start_condition, [*start], 0
        while (count is None or i < count) and is_known(flag) and np.asarray(flag).item():
            if i > UNROLLED and count is None:
                break
            flag, carry, each = step(np.asarray(i, np.int64), flag, carry)
            for column, result in zip(results, each, strict=True):
                column.append(result)
            i += 1
        if (count is not None and i >= count) or (is_known(flag) and not np.asarray(flag).item()):
            if any(not column for column in results):
                raise call.refused("has no steps, and what they would stack has no known shape")
            return (*carry, *(jnp.stack([*map(jnp.asarray, column)]) for column in results))
    arrays = [jnp.asarray(x) for x in start]
    first = jnp.asarray(start_condition).reshape(()).astype(bool)
    if count is not None and is_known(start_condition) and np.asarray(start_condition).item():
        endless = []

        def tried(i: Value, carry: Sequence[Value]) -> None:
            # Of a step and values that aren't known here: the condition of one step that is says
            # nothing about the next.
            flag = step(i, np.asarray(True), carry)[0]
            endless.append(is_known(flag) and np.asarray(flag).item())

        jax.eval_shape(tried, jnp.asarray(0), arrays)
        if endless[0]:

            def scanned(carry: list[Any], i: Any) -> tuple[list[Any], list[Any]]:
                _, after, each = step(i, np.asarray(True), carry)
                return [*map(jnp.asarray, after)], [*map(jnp.asarray, each)]

            carry, rows = jax.lax.scan(scanned, arrays, jnp.arange(count))
            return (*carry, *rows)
    if stacked:
        raise call.refused("stacks results of a number of steps that isn't known when tracing")

    def goes_on(state: Any) -> Any:
        i, flag, _ = state
        return flag if count is None else flag & (i < count)

    def whiled(state: Any) -> Any:
        i, flag, carry = state
        flag, after, _ = step(i, flag, carry)
        return i + 1, jnp.asarray(flag).reshape(()).astype(bool), [*map(jnp.asarray, after)]

    return tuple(jax.lax.while_loop(goes_on, whiled, (jnp.asarray(0), first, arrays))[2])


def _scan(call: Call, *inputs: Value) -> tuple[Value, ...]:
    """Computes ONNX's Scan: a step for each row of its last inputs."""
    if call.opset < 9:
        raise call.refused("of operator sets before 9 isn't read")
    scanned = call["num_scan_inputs"]
    start, rows = inputs[: len(inputs) - scanned], inputs[len(inputs) - scanned :]
    outputs = len(call.wanted) - len(start)

    def each(name: str, count: int) -> list[int]:
        return call.get(name) or [0] * count

    sliced = []
    for x, axis, backward in zip(
        rows, each("scan_input_axes", scanned), each("scan_input_directions", scanned), strict=True
    ):  # fmt: skip
        x = jnp.moveaxis(jnp.asarray(x), axis, 0)
        sliced.append(jnp.flip(x, 0) if backward else x)

    def step(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
        results = [jnp.asarray(r) for r in call.graph("body", [*carry, *row])]
        return results[: len(carry)], results[len(carry) :]

    carry, columns = jax.lax.scan(step, [jnp.asarray(x) for x in start], sliced)
    stacked = []
    for x, axis, backward in zip(
        columns, each("scan_output_axes", outputs), each("scan_output_directions", outputs),
        strict=True,
    ):  # fmt: skip
        stacked.append(jnp.moveaxis(jnp.flip(x, 0) if backward else x, 0, axis))
    return (*carry, *stacked)


CONTROL_OPERATORS: dict[str, Callable[..., Any]] = {"If": _if, "Loop": _loop, "Scan": _scan}
