"""What ONNX's recurrent layers compute: scans over time, in one or both directions."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff_export.onnx_files._operators import Call, Value

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


def _recurrent(
    call: Call, x: Value, w: Value, r: Value, b: Value, lengths: Value, start: Sequence[Value],
    defaults: Sequence[str], step: Callable[..., Any],
) -> tuple[Any, ...]:  # fmt: skip
    """Runs a cell over time, in one or both directions.

    `step(x, carry, w, r, b, activations, direction)` gives the new carry; its first is the result.
    """
    x, w, r = jnp.asarray(x), jnp.asarray(w), jnp.asarray(r)
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
            inputs, keep = row if valid is not None else (row, None)
            after = step(inputs, carry, w[d], r[d], bias, functions[d], d)
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

    return _recurrent(call, x, w, r, b, lengths, [h], ["tanh"], step)


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

    return _recurrent(call, x, w, r, b, lengths, [h, c], ["sigmoid", "tanh", "tanh"], step)


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

    return _recurrent(call, x, w, r, b, lengths, [h], ["sigmoid", "tanh"], step)


RECURRENT_OPERATORS: dict[str, Callable[..., Any]] = {"RNN": _rnn, "LSTM": _lstm, "GRU": _gru}
