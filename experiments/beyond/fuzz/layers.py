"""Layers of random networks: products, convolutions, pools, norms and activations."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from experiments.beyond.fuzz.drawing import Block, Draw, Shape

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "relu": jax.nn.relu, "relu6": jax.nn.relu6, "gelu": jax.nn.gelu,
    "gelu_exact": lambda x: jax.nn.gelu(x, approximate=False), "silu": jax.nn.silu,
    "tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid, "softplus": jax.nn.softplus, "elu": jax.nn.elu,
    "selu": jax.nn.selu, "celu": jax.nn.celu, "leaky_relu": jax.nn.leaky_relu,
    "hard_swish": jax.nn.hard_swish, "hard_sigmoid": jax.nn.hard_sigmoid,
    "hard_tanh": jax.nn.hard_tanh, "mish": jax.nn.mish, "softmax": jax.nn.softmax,
    "log_softmax": jax.nn.log_softmax, "soft_sign": jax.nn.soft_sign, "abs": jnp.abs,
    "sin": jnp.sin, "square": jnp.square, "clip": lambda x: jnp.clip(x, -0.5, 1.0),
    "maximum": lambda x: jnp.maximum(x, 0.1), "where": lambda x: jnp.where(x > 0, x, 0.2 * x),
}  # fmt: skip
"""Functions of one value, or of the channels of a position."""


def dense(d: Draw, shape: Shape, out: int | None = None) -> Block:
    """A product with the channels of each position, written in one of the usual ways."""
    out = out or d.width()
    form = d.one(("matmul", "einsum", "dot"))
    params = {"w": d.weight(shape[-1], out)}
    if d.often(0.7):
        params["b"] = d.normal(out, scale=0.3)

    def apply(p: Any, x: jax.Array) -> jax.Array:
        if form == "matmul":
            y = x @ p["w"]
        elif form == "einsum":
            y = jnp.einsum("...i,io->...o", x, p["w"])
        else:
            y = jnp.dot(x, p["w"])
        return y + p["b"] if "b" in p else y

    return Block(f"dense {out}", params, apply)


def convolution(d: Draw, shape: Shape, out: int | None = None) -> Block:
    """A convolution over positions: ordinary, of groups, or depthwise.

    With `out` it has so many channels and keeps the positions.
    """
    *sizes, channels = shape
    kind = d.one(("conv", "conv", "depthwise", "grouped"))
    groups = {"conv": 1, "depthwise": channels, "grouped": d.divisor(channels)}[kind]
    if out is not None and out % groups:
        kind, groups = "conv", 1
    keeps = out is not None
    out = out or groups * d.one((1, 1, 2, 3))
    if kind == "conv" and not keeps:
        out = d.width()
    window = [d.one([k for k in (1, 2, 3) if k <= n]) for n in sizes]
    strides = [1 if keeps else d.one([s for s in (1, 1, 2) if s <= n]) for n in sizes]
    apart = [1 if s > 1 else d.one((1, 1, 2)) for s in strides]
    fits = all((k - 1) * a < n for k, a, n in zip(window, apart, sizes, strict=True))
    padding: Any = "SAME"
    if not keeps and fits:
        padding = d.one(("SAME", "VALID", [(1, 0)] * len(sizes), [(0, 2)] * len(sizes)))
    first = d.often(0.2)  # channels first, as PyTorch has them
    axes = "HW"[: len(sizes)]
    numbers = (
        (f"NC{axes}", f"OI{axes}", f"NC{axes}")
        if first
        else (f"N{axes}C", f"{axes}IO", f"N{axes}C")
    )
    params = {"w": d.weight(*window, channels // groups, out)}
    if first:
        params["w"] = jnp.moveaxis(params["w"], (-1, -2), (0, 1))
    if d.often(0.7):
        params["b"] = d.normal(out, scale=0.3)

    def apply(p: Any, x: jax.Array) -> jax.Array:
        x = jnp.moveaxis(x, -1, 1) if first else x
        y = lax.conv_general_dilated(
            x, p["w"], strides, padding, rhs_dilation=apart, dimension_numbers=numbers,
            feature_group_count=groups,
        )  # fmt: skip
        y = jnp.moveaxis(y, 1, -1) if first else y
        return y + p["b"] if "b" in p else y

    size = "x".join(map(str, window))
    name = f"{kind} {size} {out}/{groups} stride {strides} dilation {apart} {padding}"
    return Block(name + (" channels first" if first else ""), params, apply)


def transposed(d: Draw, shape: Shape) -> Block:
    """A transposed convolution."""
    *sizes, _ = shape
    out, window, stride = d.width(), d.one((1, 2, 3, 4)), d.one((1, 2))
    padding = d.one(("SAME", "VALID"))
    axes = "HW"[: len(sizes)]
    numbers = (f"N{axes}C", f"{axes}IO", f"N{axes}C")
    params = {"w": d.weight(*[window] * len(sizes), shape[-1], out)}

    def apply(p: Any, x: jax.Array) -> jax.Array:
        return lax.conv_transpose(
            x, p["w"], [stride] * len(sizes), padding, dimension_numbers=numbers
        )

    return Block(f"transposed {window} {out} stride {stride} {padding}", params, apply)


def pool(d: Draw, shape: Shape) -> Block:
    """The largest or mean value of windows, padded or not."""
    *sizes, _ = shape
    window = tuple(min(n, d.one((2, 3))) for n in sizes)
    strides = tuple(d.one([s for s in (1, 2, 2) if s <= n]) for n in sizes)
    padding: Any = d.one(("SAME", "VALID", [(k // 2, (k - 1) // 2) for k in window]))
    kind, counts = d.one(("max", "avg")), d.often()

    def apply(p: Any, x: jax.Array) -> jax.Array:
        if kind == "max":
            return nnx.max_pool(x, window, strides, padding)
        return nnx.avg_pool(x, window, strides, padding, counts)

    return Block(f"{kind}_pool {window} stride {strides} {padding} {counts}", {}, apply)


def norm(d: Draw, shape: Shape) -> Block:
    """A layer, RMS or group norm, or a batch norm with the statistics of its training."""
    channels = shape[-1]
    kind = d.one(("layer", "rms", "group", "batch"))
    groups = d.divisor(channels)
    params = {"scale": d.normal(channels, scale=0.2, around=1.0)}
    if kind != "rms":
        params["bias"] = d.normal(channels, scale=0.2)
    if kind == "batch":
        params["mean"] = d.normal(channels, scale=0.3)
        params["var"] = jnp.exp(d.normal(channels, scale=0.3))

    def apply(p: Any, x: jax.Array) -> jax.Array:
        if kind == "batch":
            y = (x - p["mean"]) * lax.rsqrt(p["var"] + 1e-5)
        elif kind == "rms":
            y = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
        elif kind == "layer":
            y = jax.nn.standardize(x, epsilon=1e-5)
        else:
            split = x.reshape(*x.shape[:-1], groups, channels // groups)
            over = (*range(1, x.ndim - 1), split.ndim - 1)
            y = jax.nn.standardize(split, axis=over, epsilon=1e-5).reshape(x.shape)
        y = y * p["scale"]
        return y + p["bias"] if "bias" in p else y

    return Block(f"{kind}_norm" + (f" {groups}" if kind == "group" else ""), params, apply)


def activation(d: Draw, shape: Shape) -> Block:
    """A function of each value, or of the channels of each position."""
    if d.often(0.08):
        slope = {"slope": d.normal(shape[-1], scale=0.1, around=0.25)}
        return Block("prelu", slope, lambda p, x: jnp.where(x > 0, x, p["slope"] * x))
    name = d.one(tuple(ACTIVATIONS))
    return Block(name, {}, lambda p, x: ACTIVATIONS[name](x))
