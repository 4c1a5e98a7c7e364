"""How a network is made: without computing anything, its parameters drawn at random."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from flax import nnx

import jaxeff

IMAGE = np.random.default_rng(1).standard_normal((2, 8, 8, 3), np.float32)
SEQUENCE = np.random.default_rng(2).standard_normal((2, 6, 5), np.float32)
TOKENS = np.arange(12).reshape(2, 6)


@dataclass(frozen=True)
class Network:
    """A function, its parameters and arguments.

    Attributes:
        f: The function `f(params, *args)`.
        params: Its parameters; none is zero, so that no channel is nothing.
        args: Its arguments.
        narrow: Where statistics cross channels: the function of the same network built with other
            sizes, `narrow(**sizes)`.
        sizes: Those sizes, by the groups of channels that they are of.
        alike: Sizes that the network can only have alike.
    """

    f: Callable[..., Any]
    params: Any
    args: tuple[Any, ...]
    narrow: Callable[..., Callable[..., Any]] | None = None
    sizes: Mapping[str, str] = field(default_factory=dict)
    alike: tuple[str, ...] = ()


def drawn(tree: Any) -> Any:
    """Numbers for shapes; a leaf's depend on its path alone, variances are positive."""

    def draw(path: Any, leaf: Any) -> Any:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        if not jax.dtypes.issubdtype(leaf.dtype, np.floating):
            return np.zeros(leaf.shape, leaf.dtype)
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        fan_in = int(np.prod(leaf.shape[:-1])) if len(leaf.shape) > 1 else 4
        values = rng.standard_normal(leaf.shape, np.float32) / fan_in**0.5
        if name.endswith(("var", "scale", "var/value", "scale/value")):
            values = 1 + np.abs(values)
        return values.astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, tree)


def of_nnx(
    make: Callable[[nnx.Rngs], nnx.Module], *args: Any, narrow: Any = None, **more: Any
) -> Network:
    """A network of an NNX module, in evaluation mode; `narrow(rngs, **sizes)` makes another."""

    def read(make: Any) -> Any:
        module = nnx.eval_shape(lambda: make(nnx.Rngs(0)))
        module.eval()
        structure, state = nnx.split(module)
        return jaxeff.functional(nnx.merge(structure, drawn(state)))

    f, params = read(make)
    built = None if narrow is None else lambda **sizes: read(lambda r: narrow(r, **sizes))[0]
    return Network(f, params, args, built, **more)


def of_linen(module: Any, *args: Any) -> Network:
    """A network of a Linen module."""
    variables = jax.eval_shape(module.init, jax.random.key(0), *args)
    f, params = jaxeff.functional(module, drawn(variables))
    return Network(f, params, args)
