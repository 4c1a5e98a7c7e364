"""Blocks of random networks that share a layer, a kernel in two views, a value or a window."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from experiments.beyond.fuzz.drawing import Block, Draw, Shape
from experiments.beyond.fuzz.layers import activation, convolution, dense


def again(d: Draw, shape: Shape) -> Block:
    """One layer two or three times, with activations in between or none."""
    product = convolution if len(shape) > 1 and d.often() else dense
    layer, times = product(d, shape, shape[-1]), d.one((2, 2, 3))
    between = activation(d, shape) if d.often(0.7) else Block("nothing", {}, lambda p, x: x)
    params = {"layer": layer.params} | ({"between": between.params} if between.params else {})

    def apply(p: Any, x: jax.Array) -> jax.Array:
        for _ in range(times):
            x = between.apply(p.get("between", {}), layer.apply(p["layer"], x))
        return x

    return Block(f"again {times} ({layer.name}, {between.name})", params, apply)


def tied(d: Draw, shape: Shape) -> Block:
    """A kernel that is read as it is and transposed, or twice in a row."""
    channels = shape[-1]
    kind = d.one(("back", "square", "both", "product"))
    function = activation(d, (*shape[:-1], channels))
    params: dict[str, Any] = {"w": d.weight(channels, d.width() if kind == "back" else channels)}
    if kind == "product":
        params["v"] = d.weight(channels, channels)
    if function.params:
        params["function"] = function.params

    def apply(p: Any, x: jax.Array) -> jax.Array:
        w = p["w"]
        if kind == "back":
            return jnp.tanh(x @ w) @ w.T
        y = function.apply(p.get("function", {}), x)
        if kind == "square":
            return y @ w @ w
        if kind == "both":
            return y @ w + x @ w.T
        return y @ w @ p["v"] @ w

    return Block(f"tied {kind} {params['w'].shape} {function.name}", params, apply)


def outer(d: Draw, shape: Shape) -> Block:
    """All products of two values' channels: of one value with itself, or of two views of it."""
    left, same = dense(d, shape, d.one((1, 2, 3))), d.often()
    right = left if same else dense(d, shape, d.one((1, 2, 3)))
    params = {"left": left.params} | ({} if same else {"right": right.params})

    def apply(p: Any, x: jax.Array) -> jax.Array:
        a = left.apply(p["left"], x)
        b = a if same else right.apply(p["right"], x)
        return jnp.einsum("...i,...j->...ij", a, b).reshape(*x.shape[:-1], -1)

    return Block("outer " + ("of itself" if same else "of two"), params, apply)


def readers(d: Draw, shape: Shape) -> Block:
    """A value that two or three read, whose results meet again."""
    layer = dense(d, shape)
    inside = layer.shape(shape)
    functions = [activation(d, inside) for _ in range(d.one((1, 2)))]
    how = d.one(("sum", "product", "beside"))
    params = {"layer": layer.params}
    params |= {f"f{i}": f.params for i, f in enumerate(functions) if f.params}

    def apply(p: Any, x: jax.Array) -> jax.Array:
        y = layer.apply(p["layer"], x)
        read = [y, *(f.apply(p.get(f"f{i}", {}), y) for i, f in enumerate(functions))]
        if how == "beside":
            return jnp.concatenate(read, -1)
        result = read[0]
        for value in read[1:]:
            result = result + value if how == "sum" else result * value
        return result

    return Block(f"readers {how} ({', '.join(f.name for f in functions)})", params, apply)


def siamese(d: Draw, shape: Shape) -> Block:
    """One layer of two parts of a value, or of it and of it turned, and what they differ by."""
    halves = shape[-1] % 2 == 0 and d.often()
    part = (*shape[:-1], shape[-1] // 2) if halves else shape
    layer, how = dense(d, part), d.one(("difference", "product", "beside"))

    def apply(p: Any, x: jax.Array) -> jax.Array:
        parts = jnp.split(x, 2, -1) if halves else (x, jnp.flip(x, -1))
        a, b = (layer.apply(p, of) for of in parts)
        if how == "beside":
            return jnp.concatenate([a, b], -1)
        return a - b if how == "difference" else a * b

    return Block(f"siamese {'halves' if halves else 'turned'} {how}", layer.params, apply)


def scales(d: Draw, shape: Shape) -> Block:
    """One kernel over windows of two dilations, or over a value and that of its neighbours."""
    *sizes, channels = shape
    window, out = [d.one((1, 2, 3)) for _ in sizes], d.width()
    axes = "HW"[: len(sizes)]
    numbers = (f"N{axes}C", f"{axes}IO", f"N{axes}C")
    how = d.one(("dilations", "shifts", "means"))
    function = activation(d, (*sizes, out))
    params: dict[str, Any] = {"w": d.weight(*window, channels, out)}
    if function.params:
        params["function"] = function.params

    def apply(p: Any, x: jax.Array) -> jax.Array:
        def convolved(x: jax.Array, apart: int = 1) -> jax.Array:
            return lax.conv_general_dilated(
                x, p["w"], [1] * len(sizes), "SAME", rhs_dilation=[apart] * len(sizes),
                dimension_numbers=numbers,
            )  # fmt: skip

        y = function.apply(p.get("function", {}), convolved(x))
        if how == "dilations":
            return y + convolved(x, 2)
        if how == "shifts":
            return y * convolved(jnp.roll(x, 1, 1))
        return convolved((x + jnp.roll(x, 1, 1)) / 2) - y

    return Block(f"scales {how} {'x'.join(map(str, window))} {function.name}", params, apply)


def pyramid(d: Draw, shape: Shape) -> Block:
    """Windows of several sizes over one value, that overlap: their means or largest, together."""
    *sizes, _ = shape
    windows = [tuple(min(n, k) for n in sizes) for k in d.order((2, 3, 5))[: d.one((1, 2))]]
    kind = d.one(("mean", "max"))

    def pooled(x: jax.Array, window: tuple[int, ...]) -> jax.Array:
        around, ones = (1, *window, 1), (1,) * x.ndim
        if kind == "max":
            return lax.reduce_window(x, -jnp.inf, lax.max, around, ones, "SAME")
        total = lax.reduce_window(x, 0.0, lax.add, around, ones, "SAME")
        return total / math.prod(window)

    def apply(p: Any, x: jax.Array) -> jax.Array:
        return jnp.concatenate([x, *(pooled(x, window) for window in windows)], -1)

    return Block(f"pyramid {kind} {windows}", {}, apply)
