"""The networks, by the name of their row, and what of each is made a library of."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxeff
from experiments.beyond.integer.subjects import Subject, subject
from jaxeff.nn import MLP

TINY = (4, 4, 4, 4)
"""Widths of a network that is nearly nothing but its calls."""
SPREAD = 0.01
"""Variance of a parameter over its square."""


class Codes(NamedTuple):
    """A kernel's posterior in int8: codes of means and of standard deviations, steps by output."""

    mean: jax.Array
    mean_step: jax.Array
    std: jax.Array
    std_step: jax.Array


@dataclass(frozen=True)
class Case:
    """A network and what is asked of it."""

    name: str  # `tiny`, `mlp` or `lenet5`
    method: str  # `deterministic` or `moments`
    net: Subject  # the network and its batch

    @property
    def params(self) -> Any:
        """Parameters; for moments Gaussian ones."""
        if self.method == "deterministic":
            return self.net.params
        return jax.tree.map(lambda w: jaxeff.Gaussian(w, SPREAD * w**2), self.net.params)

    @functools.cached_property
    def forms(self) -> dict[str, tuple[Callable[..., Any], tuple[Any, Any]]]:
        """Functions with their arguments, by their arithmetic."""
        net = self.net
        if self.method == "moments":
            moments = jaxeff.moments(net.f, method="diagonal")
            written = in_codes(self.params), net.x
            return {
                "float32": (moments, (self.params, net.x)),
                "int8": (of_codes(moments), written),
            }
        g, codes = net.integer(8)
        return {"float32": (net.f, (net.params, net.x)), "int8": (g, (codes, net.x))}

    def expected(self, form: str) -> list[np.ndarray]:
        """What XLA computes."""
        g, arguments = self.forms[form]
        return [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(g)(*arguments))]


def case(name: str, method: str, batch: int) -> Case:
    """A case by its names."""
    if name != "tiny":
        return Case(name, method, subject(name, batch))
    f, params = jaxeff.functional(MLP(TINY, rngs=nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (batch, TINY[0]))
    return Case(name, method, Subject("mlp", f, params, x))


def in_codes(belief: Any) -> Any:
    """A posterior whose kernels are codes of means and of standard deviations."""
    return jax.tree.map(_written, belief, is_leaf=_is_gaussian)


def of_codes(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a posterior, as one of such codes."""
    return lambda codes, x: f(_read(codes), x)


def _is_gaussian(leaf: Any) -> bool:
    return isinstance(leaf, jaxeff.Gaussian)


def _written(leaf: Any) -> Any:
    """A kernel as codes; a bias as it is."""
    if not _is_gaussian(leaf) or leaf.mean.ndim < 2:
        return leaf

    def codes(w: jax.Array) -> tuple[jax.Array, jax.Array]:
        step = jnp.abs(w).max(range(w.ndim - 1), keepdims=True) / 127
        return jnp.rint(w / step).astype(jnp.int8), step

    return Codes(*codes(leaf.mean), *codes(jnp.sqrt(leaf.var)))


def _read(tree: Any) -> Any:
    """The posterior that codes stand for."""

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, Codes):
            return leaf
        mean = leaf.mean.astype(jnp.float32) * leaf.mean_step
        return jaxeff.Gaussian(mean, jnp.square(leaf.std.astype(jnp.float32) * leaf.std_step))

    return jax.tree.map(of, tree, is_leaf=lambda leaf: isinstance(leaf, Codes | jaxeff.Gaussian))
