"""The networks of the hardening studies as pure functions, quantized or not, and their data."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxeff
from jaxeff import data
from jaxeff.compression import initial_ranges, quantized, running
from jaxeff.hardening import relu_quantization
from jaxeff.nn import VGG11, LeNet5, ResNet18
from jaxeff.noise import Additive, slots

Model = Callable[..., Any]
NAMES = ("lenet5", "lenet5-bn", "vgg11", "resnet18")


@dataclass(frozen=True)
class Images:
    """Normalised images and labels.

    Attributes:
        train: For training.
        test: For the curves.
        shape: Of one image.
    """

    train: tuple[np.ndarray, np.ndarray]
    test: tuple[jax.Array, jax.Array]
    shape: tuple[int, int, int]


@dataclass(frozen=True)
class Network:
    """A network without its numbers.

    Attributes:
        train: `f(params, state, x) -> (logits, state)` with dropout and batch statistics.
        evaluate: The same without dropout, with running statistics.
        init: Initial parameters and state from a key.
        last: Site of the last layer.
        slots: The sites at which noise acts.
        facts: What the architecture table says of it.
    """

    train: Model
    evaluate: Model
    init: Callable[[jax.Array], tuple[Any, Any]]
    last: str
    slots: tuple[str, ...]
    facts: dict[str, float]

    def noise(self, sigma: Any) -> dict[str, Additive]:
        """Additive noise at every slot; a level, or one per image."""
        along = "sample" if jnp.ndim(sigma) else None
        return dict.fromkeys(self.slots, Additive(sigma, along=along))


def load(name: str, images: int, test_images: int) -> Images:
    """The first so many images of a data set."""
    found = data.load(name)
    train, test = (
        data.normalize(part, name)
        for part in (found.train_images[:images], found.test_images[:test_images])
    )
    return Images(
        (np.asarray(train), found.train_labels[:images]),
        (jnp.asarray(test), jnp.asarray(found.test_labels[:test_images])),
        found.image_shape,
    )


@functools.cache
def build(name: str, shape: tuple[int, int, int]) -> Network:
    """A network by name, for images of a shape."""
    height, _, channels = shape

    def make(rngs: nnx.Rngs) -> nnx.Module:
        if name.startswith("lenet5"):
            norm = name == "lenet5-bn"
            return LeNet5(10, channels, size=height, padding="VALID", batch_norm=norm, rngs=rngs)
        if name == "resnet18":
            return ResNet18(10, channels, rngs=rngs)
        # Dropout would be one layer with the ReLU before it, which has its noise in between.
        return VGG11(10, channels, dropout=0.0, rngs=rngs)

    model = make(nnx.Rngs(0))
    train, params, _ = jaxeff.functional(model, mutable=True)
    model.eval()
    evaluate, _, still = jaxeff.functional(model, mutable=True)

    def init(key: jax.Array) -> tuple[Any, Any]:
        return jaxeff.functional(make(nnx.Rngs(key)), mutable=True)[1:]

    x = jnp.zeros((1, *shape))
    places = tuple(slots(evaluate, params, still, x))
    facts = {
        "macs_m": jaxeff.cost(evaluate, params, still, x).macs / 1e6,
        "parameters_m": sum(leaf.size for leaf in jax.tree.leaves(params)) / 1e6,
        "slots": len(places),
    }
    last = "fc" if name == "resnet18" else "fc3"
    return Network(train, evaluate, init, last, places, facts)


def quantize(
    network: Network, kind: str, bits: int, scale: Any, shape: tuple[int, int, int]
) -> tuple[Model, Model, Callable[[jax.Array], tuple[Any, Any]]]:
    """A network under quantization-aware training.

    Args:
        network: The network.
        kind: "none", "constant" or "dynamic": how activations are scaled.
        bits: Bit width of weights and activations.
        scale: The constant scale.
        shape: Of one image.

    Returns:
        Training and evaluation of the quantized network, in the form of `network.train`, and its
        initial parameters and state.
    """
    if kind == "none":
        return network.train, network.evaluate, network.init
    if kind == "constant":
        spec = relu_quantization(bits, last=network.last, scale=scale)
        return quantized(network.train, spec), quantized(network.evaluate, spec), network.init
    spec = relu_quantization(bits, last=network.last)
    x = jnp.zeros((1, *shape))

    def init(key: jax.Array) -> tuple[Any, Any]:
        params, state = network.init(key)
        ranges = initial_ranges(network.train, spec, params, state, x)
        return params, {"model": state, "ranges": ranges}

    def joined(g: Model) -> Model:
        """The ranges and the network's own state as one."""

        def f(params: Any, state: Any, x: Any) -> tuple[Any, Any]:
            (logits, model), ranges = g(params, state["ranges"], state["model"], x)
            return logits, {"model": model, "ranges": ranges}

        return f

    following = running(network.train, spec)
    fixed = running(network.evaluate, spec, training=False)
    return joined(following), joined(fixed), init
