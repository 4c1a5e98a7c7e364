"""What ONNX computes step by step: recurrent layers, branches, and loops over graphs."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


# ------------------------------------------------------------------------- recurrent layers

_GATES: dict[str, Callable[..., Any]] = {
    "sigmoid": lambda x, a, b: jax.nn.sigmoid(x),
    "tanh": lambda x, a, b: jnp.tanh(x),
    "relu": lambda x, a, b: jax.nn.relu(x),
    "affine": lambda x, a, b: (1 if a is None else a) * x + (0 if b is None else b),
    "leakyrelu": lambda x, a, b: jax.nn.leaky_relu(x, 0.01 if a is None else a),
    "thresholdedrelu": lambda x, a, b: jnp.where(x > (1 if a is None else a), x, jnp.zeros_like(x)),
    "scaledtanh": lambda x, a, b: (1 if a is None else a) * jnp.tanh((1 if b is None else b) * x),
    "hardsigmoid": lambda x, a, b: jnp.clip(
        (0.2 if a is None else a) * x + (0.5 if b is None else b), 0, 1
    ),
    "elu": lambda x, a, b: jax.nn.elu(x, 1 if a is None else a),
    "softsign": lambda x, a, b: jax.nn.soft_sign(x),
    "softplus": lambda x, a, b: jax.nn.softplus(x),
}
_TAKES = {
    "affine": 2,
    "leakyrelu": 1,
    "thresholdedrelu": 1,
    "scaledtanh": 2,
    "hardsigmoid": 2,
    "elu": 1,
}


def _activations(call: Call, defaults: Sequence[str], directions: int) -> list[list[Any]]:
    """Returns the activations of each direction, each with its numbers; inputs are clipped."""
    listed = call.get("activations") or [*defaults] * directions
    # Of RNN the default is for two directions.
    names = [name.lower() for name in listed[: len(defaults) * directions]]
    if len(names) != len(defaults) * directions or not {*names} <= {*_GATES}:
        raise call.refused(f"has the activations {names}")
    alphas, betas = (
        iter(call.get("activation_alpha") or ()),
        iter(call.get("activation_beta") or ()),
    )
    functions = []
    for number, name in enumerate(names):
        # Runtimes clip the gates of an LSTM, and not the cell that its third activation is given.
        clip = call.get("clip") if number % len(defaults) < 2 else None
        a = next(alphas, None) if _TAKES.get(name, 0) else None
        b = next(betas, None) if _TAKES.get(name, 0) > 1 else None

        def activation(x: Any, name: str = name, a: Any = a, b: Any = b, clip: Any = clip) -> Any:
            return _GATES[name](jnp.clip(x, -clip, clip) if clip else x, a, b)

        functions.append(activation)
    per = len(defaults)
    return [functions[i * per : (i + 1) * per] for i in range(directions)]


class RecurrentInputs(NamedTuple):
    """The inputs that ONNX's recurrent operators have in common, in their order.

    Attributes:
        x: the sequences.
        w: weights of the sequences, by direction.
        r: weights of the state.
        b: biases of both.
        lengths: the sequences' lengths; None where all are as long as their array.
    """

    x: Value
    w: Value
    r: Value
    b: Value
    lengths: Value


def _recurrent(
    call: Call, inputs: RecurrentInputs, start: Sequence[Value], defaults: Sequence[str],
    step: Callable[..., Any],
) -> tuple[Any, ...]:  # fmt: skip
    """Runs a cell over time, in one or both directions.

    `step(x, carry, w, r, b, activations, direction)` gives the new carry; its first is the result.
    """
    x, w, r = (jnp.asarray(array) for array in inputs[:3])
    b, lengths = inputs.b, inputs.lengths
    hidden, batch_first = r.shape[2], call.get("layout", 0)
    if call.get("hidden_size", hidden) != hidden:
        raise call.refused(f"has hidden_size {call['hidden_size']}, and weights of {hidden}")
    x = x.swapaxes(0, 1) if batch_first else x
    directions = w.shape[0]
    both = call.get("direction", "forward")
    if directions != 1 + (both == "bidirectional"):
        raise call.refused(f"has weights of {directions} directions, and is {both}")
    functions = _activations(call, defaults, directions)
    valid = None
    if lengths is not None:
        valid = np.arange(x.shape[0])[:, None] < jnp.asarray(lengths)[None]
    outputs, finals = [], []
    for d in range(directions):
        carry = []
        for s in start:
            if s is None:
                carry.append(jnp.zeros((x.shape[1], hidden), x.dtype))
            else:
                carry.append(jnp.asarray(s)[:, d] if batch_first else jnp.asarray(s)[d])
        bias = jnp.zeros(2 * w.shape[1], x.dtype) if b is None else jnp.asarray(b)[d]

        def body(carry: list[Any], row: Any, d: int = d, bias: Any = bias) -> tuple[list[Any], Any]:
            entries, keep = row if valid is not None else (row, None)
            after = step(entries, carry, w[d], r[d], bias, functions[d], d)
            if keep is None:
                return after, after[0]
            kept = [jnp.where(keep[:, None], a, c) for a, c in zip(after, carry, strict=True)]
            return kept, jnp.where(keep[:, None], after[0], jnp.zeros_like(after[0]))

        backward = both == "reverse" or d == 1
        rows = x if valid is None else (x, valid)
        carry, ys = jax.lax.scan(body, carry, rows, reverse=backward)
        outputs.append(ys)
        finals.append(carry)
    y = jnp.stack(outputs, 1)
    last = [jnp.stack(states) for states in zip(*finals, strict=True)]
    if batch_first:
        return (y.transpose(2, 0, 1, 3), *(s.swapaxes(0, 1) for s in last))
    return (y, *last)


def _rnn(
    call: Call, x: Value, w: Value, r: Value, b: Value = None, lengths: Value = None,
    h: Value = None,
) -> Any:  # fmt: skip
    def step(x: Any, carry: Any, w: Any, r: Any, b: Any, f: Any, d: int) -> list[Any]:
        wb, rb = jnp.split(b, 2)
        return [f[0](x @ w.T + carry[0] @ r.T + (wb + rb)[None])]

    return _recurrent(call, RecurrentInputs(x, w, r, b, lengths), [h], ["tanh"], step)


# 9 parameters: the inputs of ONNX's operator, in its order.
def _lstm(
    call: Call, x: Value, w: Value, r: Value, b: Value = None, lengths: Value = None,
    h: Value = None, c: Value = None, peepholes: Value = None,
) -> Any:  # fmt: skip
    def step(x: Any, carry: Any, w: Any, r: Any, b: Any, f: Any, d: int) -> list[Any]:
        h, c = carry
        wb, rb = jnp.split(b, 2)
        i, o, forget, new = jnp.split(x @ w.T + h @ r.T + (wb + rb)[None], 4, -1)
        if peepholes is not None:
            pi, po, pf = jnp.split(jnp.asarray(peepholes)[d], 3)
            i, forget = i + pi[None] * c, forget + pf[None] * c
        i = f[0](i)
        forget = 1 - i if call.get("input_forget") else f[0](forget)
        c = forget * c + i * f[1](new)
        if peepholes is not None:
            o = o + po[None] * c
        return [f[0](o) * f[2](c), c]

    inputs = RecurrentInputs(x, w, r, b, lengths)
    return _recurrent(call, inputs, [h, c], ["sigmoid", "tanh", "tanh"], step)


def _gru(
    call: Call, x: Value, w: Value, r: Value, b: Value = None, lengths: Value = None,
    h: Value = None,
) -> Any:  # fmt: skip
    def step(x: Any, carry: Any, w: Any, r: Any, b: Any, f: Any, d: int) -> list[Any]:
        (h,) = carry
        wz, wr, wh, rz, rr, rh = jnp.split(b, 6)
        xz, xr, xh = jnp.split(x @ w.T, 3, -1)
        az, ar, ah = jnp.split(r, 3)
        z = f[0](xz + h @ az.T + (wz + rz)[None])
        reset = f[0](xr + h @ ar.T + (wr + rr)[None])
        if call.get("linear_before_reset"):
            new = f[1](xh + reset * (h @ ah.T + rh[None]) + wh[None])
        else:
            new = f[1](xh + (reset * h) @ ah.T + (rh + wh)[None])
        return [(1 - z) * new + z * h]

    return _recurrent(call, RecurrentInputs(x, w, r, b, lengths), [h], ["sigmoid", "tanh"], step)


RECURRENT_OPERATORS: dict[str, Callable[..., Any]] = {"RNN": _rnn, "LSTM": _lstm, "GRU": _gru}
