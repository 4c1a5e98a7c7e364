"""What is timed: two networks, and five ways of predicting with them.

| method | prediction |
|---|---|
| `deterministic` | one pass with one set of weights |
| `svi30` | 30 passes, the weights of each from a mean-field posterior |
| `moments` | one pass with means and variances |
| `multihead` | one pass, ten last layers: a last-layer ensemble |
| `ensemble` | ten networks: a deep ensemble |

Parameters are random, as no engine's speed depends on their values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import jaxeff
from experiments.posteriors import posterior_around
from jaxeff.bayes import sample
from jaxeff.nn import MLP, LeNet5

METHODS = ("deterministic", "svi30", "moments", "multihead", "ensemble")
SEVERAL = ("svi30", "ensemble")
"""Those of several networks."""
SAMPLES = 30
MEMBERS = 10
CLASSES = 10
SHAPES = {"mlp": (784,), "lenet5": (28, 28, 1), "lenet5_valid": (28, 28, 1), "sine": (1,)}
"""Shape of one input; `lenet5_valid` and `sine` are the networks of the thesis' ensembles."""


@dataclass(frozen=True)
class Subject:
    """One network with one batch, and what each method needs of it."""

    model: str  # one of `SHAPES`
    f: Callable[..., Any]  # the network as `f(params, x)`
    params: Any  # of one network
    belief: Any  # a posterior over `params`
    samples: Any  # 30 draws from it, stacked
    members: Any  # the parameters of ten networks, stacked
    # the network with ten last layers, `g(params, x)` of shape [batch, heads, classes]
    heads: Callable[..., Any]
    heads_params: Any  # its parameters
    x: jax.Array  # the batch

    @property
    def batch(self) -> int:
        """Inputs per prediction."""
        return len(self.x)

    def place(self, method: str, engine: str, threads: int) -> dict[str, Any]:
        """What a row says of where it was measured."""
        return place(self.model, method, engine, self.batch, threads)

    def program(self, method: str) -> tuple[Callable[..., Any], Any]:
        """The function `g(params, x)` of a method, and its parameters.

        Samples and members are written out one network after the other, which every compiler
        understands; `stacked` has the other form.
        """
        if method == "deterministic":
            return self.f, self.params
        if method == "moments":
            return jaxeff.moments(self.f, method="diagonal"), self.belief
        if method == "multihead":
            return self.heads, self.heads_params
        step = jax.jit(self.f)  # one function in the artifact, called once per network

        def one_by_one(separate: Any, x: Any) -> Any:
            return jnp.stack([step(weights, x) for weights in separate])

        return one_by_one, unstacked(self.stacked(method))

    def stacked(self, method: str) -> Any:
        """The weights of all networks of `svi30` or `ensemble`, along a first axis."""
        return {"svi30": self.samples, "ensemble": self.members}[method]


def subject(model: str, batch: int) -> Subject:
    """A network of `SHAPES` with random parameters, and a random batch."""
    f, params = jaxeff.functional(_network(model, nnx.Rngs(0)))
    heads, heads_params = jaxeff.functional(_heads(model, nnx.Rngs(1)))
    belief = jax.jit(posterior_around)(params)
    draws, key = jax.jit(sample, static_argnums=2), jax.random.key(2)
    return Subject(
        model, f, params, belief,
        samples=draws(key, belief, SAMPLES), members=draws(key, belief, MEMBERS),
        heads=lambda p, x: heads(p, x).reshape(len(x), MEMBERS, -1), heads_params=heads_params,
        x=jax.random.normal(jax.random.key(1), (batch, *SHAPES[model])),
    )  # fmt: skip


def place(model: str, method: str, engine: str, batch: int, threads: int) -> dict[str, Any]:
    """The columns that all rows begin with."""
    columns = {"model": model, "method": method, "engine": engine}
    return {**columns, "batch": batch, "threads": threads}


def unstacked(stacked: Any) -> list[Any]:
    """The networks of a stack, each a pytree of its own."""
    count = len(jax.tree.leaves(stacked)[0])
    return [jax.tree.map(lambda w, i=i: w[i], stacked) for i in range(count)]


class SineHeads(nnx.Module):
    """The sine's network with ten heads of ten hidden units each, and one output.

    The thesis doesn't describe its heads; these come to its 7.8 million multiplications per 1,000
    inputs within 2 %, which a single layer per head would not.
    """

    def __init__(self, rngs: nnx.Rngs):
        self.body = MLP((1, 50, 50, MEMBERS * 10), jax.nn.silu, rngs=rngs)
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), (MEMBERS, 10)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Outputs, [batch, heads]."""
        hidden = jax.nn.silu(self.body(x)).reshape(len(x), MEMBERS, 10)
        return jnp.einsum("bhk,hk->bh", hidden, self.kernel[...])


def _network(model: str, rngs: nnx.Rngs, outputs: int = CLASSES) -> nnx.Module:
    if model == "mlp":
        return MLP((784, 100, 100, outputs), rngs=rngs)
    if model == "sine":
        return MLP((1, 50, 50, 1), jax.nn.silu, rngs=rngs)
    return LeNet5(outputs, padding="VALID" if model == "lenet5_valid" else "SAME", rngs=rngs)


def _heads(model: str, rngs: nnx.Rngs) -> nnx.Module:
    """The network with ten last layers, side by side as one wide layer."""
    return SineHeads(rngs) if model == "sine" else _network(model, rngs, MEMBERS * CLASSES)
