"""Small networks that compute with the layers of any pass."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.beyond.selective.passes import Plain


class Network(NamedTuple):
    """A network: what it computes with any layers, and its initial weights."""

    compute: Callable[[Any, Any, Any], Any]
    init: Callable[[Any], Any]

    def f(self, params: Any, x: Any) -> Any:
        """Computes logits."""
        return self.compute(Plain(), params, x)


def _layer(key: Any, *shape: int) -> Any:
    fan_in = int(np.prod(shape[:-1]))
    return {"w": jax.random.normal(key, shape) * (1.6 / fan_in) ** 0.5, "b": jnp.zeros(shape[-1])}


def separable(width: int, channels: int, stem: int) -> Network:
    """Depthwise separable convolutions, and a mean over positions."""

    def init(key: Any) -> Any:
        k = jax.random.split(key, 8)
        pairs = [
            (_layer(k[2 * i], 3, 3, 1, width), _layer(k[2 * i + 1], 1, 1, width, width))
            for i in range(3)
        ]
        return {"stem": _layer(k[6], 3, 3, channels, width), "pairs": pairs,
                "fc": _layer(k[7], width, 10)}  # fmt: skip

    def compute(o: Any, p: Any, x: Any) -> Any:
        x = o.act(jax.nn.relu, o.conv(x, **p["stem"], stride=stem))
        for depth, point in p["pairs"]:
            x = o.act(jax.nn.relu, o.conv(x, **depth, groups=width))
            x = o.act(jax.nn.relu, o.conv(x, **point))
        return o.dense(o.mean(x, (1, 2)), **p["fc"])

    return Network(compute, init)


def residual(width: int, channels: int, stem: int) -> Network:
    """A ResNet-18 whose norms are folded away: eight blocks of two convolutions, four widths."""
    first = max(1, width // 4)
    widths = [first * 2**i for i in range(4) for _ in range(2)]
    strides = [1 + (i in (2, 4, 6)) for i in range(8)]
    before = [first, *widths[:-1]]

    def init(key: Any) -> Any:
        blocks = []
        for k, a, b in zip(
            jax.random.split(jax.random.fold_in(key, 1), 8), before, widths, strict=True
        ):
            k1, k2, k3 = jax.random.split(k, 3)
            block = {"first": _layer(k1, 3, 3, a, b), "second": _layer(k2, 3, 3, b, b)}
            # Small second ones in place of a norm: the stream's variance stays.
            block["second"]["w"] *= 0.3
            blocks.append(block | ({"side": _layer(k3, 1, 1, a, b)} if a != b else {}))
        k1, k2 = jax.random.split(key)
        return {"stem": _layer(k1, 3, 3, channels, first), "blocks": blocks,
                "fc": _layer(k2, widths[-1], 10)}  # fmt: skip

    def compute(o: Any, p: Any, x: Any) -> Any:
        x = o.act(jax.nn.relu, o.conv(x, **p["stem"], stride=stem))
        for block, stride in zip(p["blocks"], strides, strict=True):
            y = o.act(jax.nn.relu, o.conv(x, **block["first"], stride=stride))
            y = o.conv(y, **block["second"])
            side = o.conv(x, **block["side"], stride=stride) if "side" in block else x
            x = o.act(jax.nn.relu, o.add(side, y))
        return o.dense(o.mean(x, (1, 2)), **p["fc"])

    return Network(compute, init)


def transformer(width: int, tokens: int, features: int, classes: int, causal: bool) -> Network:
    """A pre-norm transformer of two blocks: the mean of tokens, or the last one, is classified."""
    heads = 2

    def init(key: Any) -> Any:
        k = iter(jax.random.split(key, 16))
        blocks = [
            {name: _layer(next(k), *shape) for name, shape in (
                ("q", (width, width)), ("k", (width, width)), ("v", (width, width)),
                ("out", (width, width)), ("up", (width, 2 * width)), ("down", (2 * width, width)),
            )}
            for _ in range(2)
        ]  # fmt: skip
        places = jax.random.normal(next(k), (tokens, width)) * 0.1
        return {"embed": _layer(next(k), features, width), "places": places, "blocks": blocks,
                "fc": _layer(next(k), width, classes)}  # fmt: skip

    def split(x: Any) -> Any:
        return jnp.swapaxes(x.reshape(*x.shape[:2], heads, -1), 1, 2)

    def joined(x: Any) -> Any:
        return jnp.swapaxes(x, 1, 2).reshape(len(x), tokens, width)

    def compute(o: Any, p: Any, x: Any) -> Any:
        x = o.add(o.dense(x, **p["embed"]), p["places"])
        for b in p["blocks"]:
            y = o.norm(x)
            q, k, v = (o.move(split, o.dense(y, **b[name])) for name in ("q", "k", "v"))
            x = o.add(x, o.dense(o.move(joined, o.attend(q, k, v, causal)), **b["out"]))
            y = o.act(jax.nn.gelu, o.dense(o.norm(x), **b["up"]))
            x = o.add(x, o.dense(y, **b["down"]))
        x = o.norm(x)
        return o.dense(o.move(lambda x: x[:, -1], x) if causal else o.mean(x, (1,)), **p["fc"])

    return Network(compute, init)
