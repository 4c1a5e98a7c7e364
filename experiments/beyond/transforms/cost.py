"""FLOPs and bytes of transformed networks beside hand-written ones, as XLA counts them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.stages import Compiled

import jaxeff
from experiments.beyond.transforms import handwritten
from experiments.contests import forward_passes
from experiments.harness.rows import Entry
from experiments.posteriors import posterior_around
from jaxeff.compression import Int, quantized
from jaxeff.moment_propagation import Gaussian, moments
from jaxeff.nn import MLP, LeNet5, ResNet18
from jaxeff.noise import Additive, Multiplicative, Noise, noisy
from jaxeff.program import site_key

TRANSFORMS = ("noisy", "quantized", "moments")
ADD, MUL, BITS = 0.1, 0.05, 8
NOISE: dict[str, Noise | None] = {"*:linear": Additive(ADD), "relu*": Multiplicative(MUL)}
GRID = {"*:linear": Int(BITS, symmetric=False)}
COLUMNS: dict[str, Entry] = {
    "MFLOPs": lambda row: row["flops"] / 1e6, "ratio": "flops_ratio",
    "MB": lambda row: row["bytes"] / 1e6, "ratio ": "bytes_ratio",
}  # fmt: skip
"""Of tables of counts."""
# Per name: the Flax model, the same by hand, and the shape of an input.
NETS: dict[str, tuple[Callable[[nnx.Rngs], Any], Callable[..., Any], tuple[int, ...]]] = {
    "mlp": (lambda rngs: MLP((784, 100, 100, 10), rngs=rngs), forward_passes.mlp, (784,)),
    "lenet5": (lambda rngs: LeNet5(rngs=rngs), forward_passes.lenet5, (28, 28, 1)),
    "resnet18-imagenet": (
        lambda rngs: ResNet18(stem="imagenet", rngs=rngs), forward_passes.resnet18, (32, 32, 3)
    ),
    "resnet18-cifar": (
        lambda rngs: ResNet18(stem="cifar", rngs=rngs), forward_passes.resnet18, (32, 32, 3)
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A network, written as a Flax model and by hand."""

    name: str  # how figures name it
    f: Callable[..., Any]  # the model as a pure function `f(params, x)`
    by_hand: Callable[..., Any]  # the same as `by_hand(layers, params, state, x)`
    params: Any  # its parameters
    state: Any  # its batch statistics, which both close over
    x: jax.Array  # a batch


def subject(name: str, batch: int) -> Subject:
    """A network of `NETS` with random parameters and batch statistics, and a random batch."""
    make, by_hand, shape = NETS[name]
    model = make(nnx.Rngs(0))
    model.eval()
    for i, (_, module) in enumerate(nnx.iter_graph(model)):
        if isinstance(module, nnx.BatchNorm):
            _randomise(module, jax.random.key(i))
    _, _, state = jaxeff.functional(model, mutable=True)
    f, params = jaxeff.functional(model)
    x = jax.random.normal(jax.random.key(1), (batch, *shape))
    return Subject(name, f, by_hand, params, state, x)


def _randomise(module: nnx.BatchNorm, key: jax.Array) -> None:
    width = module.mean[...].shape
    module.mean[...] = 0.1 * jax.random.normal(key, width)
    module.var[...] = jax.random.uniform(key, width, minval=0.5, maxval=1.5)


def pair(net: Subject, transform: str) -> tuple[Callable[..., Any], Callable[..., Any], tuple]:
    """The transformed function, the hand-written one, and the arguments of both."""
    if transform == "noisy":
        args = (jax.random.key(7), net.params, net.x)
        # Site by site, as it is written by hand: XLA counts the body of a loop once, however often
        # it runs, so a loop that draws for all sites can't be compared by its count.
        return noisy(net.f, NOISE, together=False), _noisy_by_hand(net), args
    if transform == "quantized":
        return (
            quantized(net.f, GRID),
            lambda p, x: net.by_hand(handwritten.Quantized(BITS), p, net.state, x),
            (net.params, net.x),
        )
    diagonal = moments(net.f, method="diagonal")  # as it is written by hand
    return diagonal, moments_by_hand(net), (posterior_around(net.params), net.x)


def moments_by_hand(net: Subject) -> Callable[..., Any]:
    """Hand-written moments of a network, as a `Gaussian`."""
    return lambda p, x: Gaussian(*net.by_hand(handwritten.Moments(), p, net.state, x))


def _noisy_by_hand(net: Subject) -> Callable[..., Any]:
    """Hand-written noise, drawn from the keys that `noisy` gives its sites."""
    sites = jaxeff.trace(net.f, net.params, net.x).sites
    noisy_sites = [s for s in sites if s.kind == "linear" or s.base.startswith("relu")]

    def function(key: jax.Array, params: Any, x: jax.Array) -> Any:
        of_sites = (site_key(key, layer) for layer in noisy_sites)
        keys = (jax.random.fold_in(k, 0) for k in of_sites if k is not None)
        return net.by_hand(handwritten.Noisy(keys, ADD, MUL), params, net.state, x)

    return function


def compare(net: Subject, transform: str) -> dict[str, Any]:
    """One row: XLA's counts for both, their ratios, and how far their results are apart."""
    ours, by_hand, args = pair(net, transform)
    row: dict[str, Any] = {"net": net.name, "batch": len(net.x), "transform": transform}
    compiled, by_hand = compile_for(ours, args), compile_for(by_hand, args)
    counts, expected = count(compiled), count(by_hand)
    for what, number in counts.items():
        row[what], row[f"{what}_by_hand"] = number, expected[what]
        if expected[what]:
            row[f"{what}_ratio"] = number / expected[what]
    row["difference"] = difference(compiled(*args), by_hand(*args))
    return row


def compile_for(function: Callable[..., Any], args: tuple) -> Compiled:
    """The executable of a jitted function."""
    return jax.jit(function).lower(*args).compile()


def count(compiled: Compiled) -> dict[str, float]:
    """XLA's FLOPs, bytes accessed and transcendental operations of an executable."""
    analysis = compiled.cost_analysis() or {}
    return {
        "flops": analysis.get("flops", 0.0),
        "bytes": analysis.get("bytes accessed", 0.0),
        "transcendentals": analysis.get("transcendentals", 0.0),
    }


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to the largest value of the same leaf."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(jnp.max(jnp.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs)
