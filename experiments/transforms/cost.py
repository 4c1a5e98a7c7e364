"""FLOPs and bytes of transformed networks beside hand-written ones, as XLA counts them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxeff
from experiments.transforms import handwritten, networks
from jaxeff.compression import Int, quantized
from jaxeff.moments import Gaussian, moments
from jaxeff.nn import MLP, LeNet5, ResNet18
from jaxeff.noise import Additive, Multiplicative, noisy
from jaxeff.program.evaluation import site_key

TRANSFORMS = ("noisy", "quantized", "moments")
ADD, MUL, BITS = 0.1, 0.05, 8
NOISE = {"*:linear": Additive(ADD), "relu*": Multiplicative(MUL)}
GRID = {"*:linear": Int(BITS)}


@dataclass(frozen=True)
class Subject:
    """A network, written as a Flax model and by hand.

    Attributes:
        name: How figures name it.
        f: The model as a pure function `f(params, x)`.
        by_hand: The same as `by_hand(layers, params, state, x)`.
        params: Its parameters.
        state: Its batch statistics, which both close over.
        x: A batch.
    """

    name: str
    f: Callable[..., Any]
    by_hand: Callable[..., Any]
    params: Any
    state: Any
    x: jax.Array


def subject(name: str, batch: int) -> Subject:
    """A reference network with random parameters and batch statistics, and a random batch.

    Args:
        name: mlp, lenet5, resnet18-imagenet or resnet18-cifar.
        batch: Images in the batch.
    """
    rngs = nnx.Rngs(0)
    if name == "mlp":
        model, by_hand, shape = MLP((784, 100, 100, 10), rngs=rngs), networks.mlp, (784,)
    elif name == "lenet5":
        model, by_hand, shape = LeNet5(rngs=rngs), networks.lenet5, (28, 28, 1)
    else:
        stem = name.removeprefix("resnet18-")
        model, by_hand, shape = ResNet18(stem=stem, rngs=rngs), networks.resnet18, (32, 32, 3)
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


def posterior(params: Any) -> Any:
    """A posterior around parameters: every leaf a `Gaussian`, as SVI returns it."""
    return jax.tree.map(lambda w: Gaussian(w, 1e-4 + 1e-2 * w * w), params)


def pair(net: Subject, transform: str) -> tuple[Callable[..., Any], Callable[..., Any], tuple]:
    """The transformed function, the hand-written one, and the arguments of both."""
    if transform == "noisy":
        args = (jax.random.key(7), net.params, net.x)
        return noisy(net.f, NOISE), _noisy_by_hand(net, _split), args
    if transform == "quantized":
        return (
            quantized(net.f, GRID),
            lambda p, x: net.by_hand(handwritten.Quantized(BITS), p, net.state, x),
            (net.params, net.x),
        )
    return moments(net.f), moments_by_hand(net), (posterior(net.params), net.x)


def moments_by_hand(net: Subject, layers: Any = handwritten.Moments) -> Callable[..., Any]:
    """Hand-written moments of a network, as a `Gaussian`."""
    return lambda p, x: Gaussian(*net.by_hand(layers(), p, net.state, x))


def _noisy_by_hand(
    net: Subject, keys: Callable[[jax.Array, Subject], Iterator[jax.Array]]
) -> Callable[..., Any]:
    return lambda key, p, x: net.by_hand(
        handwritten.Noisy(keys(key, net), ADD, MUL), p, net.state, x
    )


def _split(key: jax.Array, net: Subject) -> Iterator[jax.Array]:
    return iter(jax.random.split(key, len(_noisy_sites(net))))


def _of_sites(key: jax.Array, net: Subject) -> Iterator[jax.Array]:
    """The keys that `noisy` gives its sites."""
    for layer in _noisy_sites(net):
        yield jax.random.fold_in(site_key(key, layer), 0)


def _noisy_sites(net: Subject) -> list[Any]:
    layers = jaxeff.trace(net.f, net.params, net.x).sites
    return [s for s in layers if s.kind == "linear" or s.base.startswith("relu")]


def compare(net: Subject, transform: str) -> dict[str, Any]:
    """One row: XLA's counts for both, their ratios, and how far their results are apart."""
    ours, by_hand, args = pair(net, transform)
    row: dict[str, Any] = {"net": net.name, "batch": len(net.x), "transform": transform}
    counts = {}
    for name, function in (("ours", ours), ("by_hand", by_hand)):
        counts[name] = count(function, args)
    for what in ("flops", "bytes", "transcendentals"):
        row[what] = counts["ours"][what]
        row[f"{what}_by_hand"] = counts["by_hand"][what]
        if counts["by_hand"][what]:
            row[f"{what}_ratio"] = row[what] / row[f"{what}_by_hand"]
    if transform == "noisy":
        by_hand = _noisy_by_hand(net, _of_sites)
    row["difference"] = difference(jax.jit(ours)(*args), jax.jit(by_hand)(*args))
    return row


def count(function: Callable[..., Any], args: tuple) -> dict[str, float]:
    """XLA's FLOPs, bytes accessed and transcendental operations of a jitted function."""
    analysis = jax.jit(function).lower(*args).compile().cost_analysis()
    return {
        "flops": analysis["flops"],
        "bytes": analysis["bytes accessed"],
        "transcendentals": analysis.get("transcendentals", 0.0),
    }


def difference(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to the largest value of the same leaf."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    return max(float(jnp.max(jnp.abs(a - b)) / np.max(np.abs(b))) for a, b in pairs)
