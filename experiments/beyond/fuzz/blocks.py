"""Blocks of random networks that join layers: sums, gates, attention, recurrences, shapes."""

from typing import Any

import jax
import jax.numpy as jnp

from experiments.beyond.fuzz.drawing import Block, Draw, Shape, chain
from experiments.beyond.fuzz.layers import activation, convolution, dense, norm


def _branch(d: Draw, shape: Shape, out: int | None = None) -> Block:
    """One to three layers in any order that keep positions, and channels unless told otherwise."""
    product = convolution if len(shape) > 1 and d.often() else dense
    out = out or shape[-1]
    layers = [product(d, shape, out)]
    layers += [norm(d, (*shape[:-1], out))] if d.often(0.4) else []
    layers += [activation(d, (*shape[:-1], out))] if d.often(0.7) else []
    if out == shape[-1]:
        layers = d.order(layers)
    return chain(layers, " ".join(block.name.split()[0] for block in layers))


def residual(d: Draw, shape: Shape) -> Block:
    """A sum of the input and a branch, or of two branches."""
    left = _branch(d, shape)
    right = _branch(d, shape) if d.often(0.2) else Block("input", {}, lambda p, x: x)
    params = {"left": left.params} | ({"right": right.params} if right.params else {})
    less = d.often(0.2)

    def apply(p: Any, x: jax.Array) -> jax.Array:
        a, b = right.apply(p.get("right", {}), x), left.apply(p["left"], x)
        return a - b if less else a + b

    return Block(f"residual ({left.name} + {right.name})", params, apply)


def concatenation(d: Draw, shape: Shape) -> Block:
    """The channels of the input, or of a branch, beside those of another branch."""
    left, right = _branch(d, shape, d.width()), _branch(d, shape, d.width())
    dense_net = d.often()
    params = {"left": left.params} | ({} if dense_net else {"right": right.params})

    def apply(p: Any, x: jax.Array) -> jax.Array:
        other = x if dense_net else right.apply(p["right"], x)
        return jnp.concatenate([other, left.apply(p["left"], x)], -1)

    beside = "input" if dense_net else right.name
    return Block(f"concatenation ({beside}, {left.name})", params, apply)


def gate(d: Draw, shape: Shape) -> Block:
    """A product of a branch and another's activation."""
    out = d.width()
    value, scale = dense(d, shape, out), dense(d, shape, out)
    name = d.one(("sigmoid", "silu", "gelu", "tanh"))
    function = getattr(jnp if name == "tanh" else jax.nn, name)
    joined = d.often(0.3)  # one product whose halves are split

    def apply(p: Any, x: jax.Array) -> jax.Array:
        if joined:
            a, b = jnp.split(x @ p["w"], 2, -1)
        else:
            a, b = value.apply(p["value"], x), scale.apply(p["gate"], x)
        return a * function(b)

    params = (
        {"w": d.weight(shape[-1], 2 * out)}
        if joined
        else {"value": value.params, "gate": scale.params}
    )
    return Block(f"gate {name} {out}" + (" split" if joined else ""), params, apply)


def squeeze_excite(d: Draw, shape: Shape) -> Block:
    """Channels scaled by a function of their means over positions."""
    inner = dense(d, shape[-1:], d.one((1, 2, 3, 4)))
    outer = dense(d, inner.shape(shape[-1:]), shape[-1])
    last = d.one((jax.nn.sigmoid, jax.nn.hard_sigmoid))
    over = tuple(range(1, len(shape)))

    def apply(p: Any, x: jax.Array) -> jax.Array:
        y = jax.nn.relu(inner.apply(p["squeeze"], x.mean(over)))
        y = last(outer.apply(p["excite"], y))
        return x * jnp.expand_dims(y, over)

    params = {"squeeze": inner.params, "excite": outer.params}
    return Block("squeeze_excite", params, apply)


def attention(d: Draw, shape: Shape) -> Block:
    """Attention of positions to each other with one or more heads, causal or not, and its sum."""
    length, channels = shape
    heads, size = d.one((1, 2, 3)), d.one((2, 3, 4))
    causal, by_hand, summed = d.often(0.3), d.often(), d.often(0.7)
    params = {name: d.weight(channels, heads * size) for name in ("query", "key", "value")}
    params["out"] = d.weight(heads * size, channels)

    def apply(p: Any, x: jax.Array) -> jax.Array:
        q, k, v = (
            (x @ p[name]).reshape(-1, length, heads, size) for name in ("query", "key", "value")
        )
        if by_hand:
            scores = jnp.einsum("nqhc,nkhc->nhqk", q, k) / size**0.5
            if causal:
                scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9)
            y = jnp.einsum("nhqk,nkhc->nqhc", jax.nn.softmax(scores), v)
        else:
            y = jax.nn.dot_product_attention(q, k, v, is_causal=causal)
        y = y.reshape(-1, length, heads * size) @ p["out"]
        return x + y if summed else y

    return Block(f"attention {heads}x{size}" + " causal" * causal, params, apply)


def recurrence(d: Draw, shape: Shape) -> Block:
    """A cell over positions: a scan, or a loop of Python over slices or over `jnp.unstack`."""
    length, channels = shape
    out, every = d.one((1, 2, 3, 4, 5, 8)), d.often()
    cell = d.one(("tanh", "gru", "leaky"))
    loop = d.one(("scan", "scan", "scan", "slices", "unstack"))
    backwards = loop == "scan" and d.often(0.2)
    gates = 3 if cell == "gru" else 1
    params = {"w": d.weight(channels, gates * out), "u": d.weight(out, gates * out)}
    params["b"] = d.normal(gates * out, scale=0.2)

    def step(p: Any, h: jax.Array, v: jax.Array) -> jax.Array:
        if cell == "tanh":
            return jnp.tanh(v @ p["w"] + h @ p["u"] + p["b"])
        if cell == "leaky":
            return 0.8 * h + 0.2 * jax.nn.relu(v @ p["w"] + h @ p["u"] + p["b"])
        a, b = v @ p["w"] + p["b"], h @ p["u"]
        reset, update, new = zip(jnp.split(a, 3, -1), jnp.split(b, 3, -1), strict=True)
        r, z = jax.nn.sigmoid(sum(reset)), jax.nn.sigmoid(sum(update))
        return (1 - z) * jnp.tanh(new[0] + r * new[1]) + z * h

    def apply(p: Any, x: jax.Array) -> jax.Array:
        h = jnp.zeros((x.shape[0], out), x.dtype)
        if loop == "scan":
            h, seen = jax.lax.scan(
                lambda h, v: (step(p, h, v),) * 2, h, jnp.swapaxes(x, 0, 1), reverse=backwards
            )
            return jnp.swapaxes(seen, 0, 1) if every else h
        states = []
        each = jnp.unstack(x, axis=1) if loop == "unstack" else [x[:, i] for i in range(length)]
        for v in each:
            states.append(h := step(p, h, v))
        return jnp.stack(states, 1) if every else h

    name = f"{cell} {out} by {loop}" + (" backwards" if backwards else "") + (" states" * every)
    return Block(f"recurrence {name}", params, apply)


def mixing(d: Draw, shape: Shape) -> Block:
    """A product over positions, for each channel (an MLP mixer's)."""
    w = {"w": d.weight(shape[0], d.one((shape[0], 2, 3)))}
    return Block(
        f"mixing {w['w'].shape}", w, lambda p, x: jnp.swapaxes(jnp.swapaxes(x, 1, 2) @ p["w"], 1, 2)
    )


def positions(d: Draw, shape: Shape) -> Block:
    """A sum with learnt values of each position."""
    return Block("positions", {"at": d.normal(*shape, scale=0.3)}, lambda p, x: x + p["at"])


def pooled(d: Draw, shape: Shape) -> Block:
    """A mean, sum or largest value over all positions, or those of the last ones."""
    over = tuple(range(1, len(shape)))
    kind = d.one(("mean", "mean", "max", "sum", "last"))
    if kind == "last":
        return Block("last", {}, lambda p, x: x[:, -1])
    return Block(f"{kind} over positions", {}, lambda p, x: getattr(x, kind)(over))


def flattened(d: Draw, shape: Shape) -> Block:
    """All values of an example as channels, in one of two orders."""
    if d.often(0.25):
        return Block(
            "flatten channels first", {}, lambda p, x: jnp.moveaxis(x, -1, 1).reshape(len(x), -1)
        )
    return Block("flatten", {}, lambda p, x: x.reshape(len(x), -1))


def reshaped(d: Draw, shape: Shape) -> Block | None:
    """The same values with another number of positions: to a sequence, an image, or folded."""
    *sizes, channels = shape
    if len(sizes) == 2:
        return Block("to sequence", {}, lambda p, x: x.reshape(len(x), -1, channels))
    if not sizes:
        parts = d.divisor(channels)
        return Block(f"to sequence of {parts}", {}, lambda p, x: x.reshape(len(x), parts, -1))
    if sizes[0] % 2 == 0 and d.often():
        return Block("to image", {}, lambda p, x: x.reshape(len(x), 2, -1, channels))
    return Block("transpose", {}, lambda p, x: jnp.swapaxes(x, 1, 2))


def moved(d: Draw, shape: Shape) -> Block | None:
    """Channels shuffled, halves multiplied, positions padded, repeated, turned or sliced."""
    *sizes, channels = shape
    kind = d.one(("shuffle", "halves", "pad", "repeat", "flip", "slice"))
    if kind == "shuffle":
        groups = d.divisor(channels)
        split = lambda x: x.reshape(*x.shape[:-1], groups, -1)  # noqa: E731
        return Block(
            f"shuffle {groups}", {}, lambda p, x: jnp.swapaxes(split(x), -1, -2).reshape(x.shape)
        )
    if kind == "halves" and channels % 2 == 0:
        return Block("halves", {}, lambda p, x: x[..., ::2] * x[..., 1::2])
    if not sizes:
        return None
    if kind == "pad":
        wide = [(0, 0), *[(1, 0)] * len(sizes), (0, 0)]
        return Block("pad", {}, lambda p, x: jnp.pad(x, wide))
    if kind == "repeat" and max(sizes) < 6:
        return Block("repeat", {}, lambda p, x: jnp.repeat(x, 2, 1))
    if kind == "flip":
        return Block("flip", {}, lambda p, x: jnp.flip(x, 1))
    return Block("slice", {}, lambda p, x: x[:, 1:]) if sizes[0] > 1 else None
