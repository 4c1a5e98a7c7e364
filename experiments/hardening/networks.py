"""The networks of the hardening studies as pure functions, quantized or not, and their data."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

import jaxeff
from experiments import trainable
from jaxeff.compression import initial_ranges, quantized, running
from jaxeff.hardening import relu_quantization
from jaxeff.nn import VGG11, LeNet5, ResNet18
from jaxeff.noise import Additive

Model = Callable[..., Any]
NAMES = ("lenet5", "lenet5-bn", "vgg11", "resnet18")


@dataclass(frozen=True)
class Network(trainable.Network):
    """A network without its numbers.

    Attributes:
        last: Site of the last layer.
        facts: What the architecture table says of it.
    """

    last: str
    facts: dict[str, float]

    def noise(self, sigma: Any) -> dict[str, Additive]:
        """Additive noise at every slot; a level, or one per image."""
        along = "sample" if jnp.ndim(sigma) else None
        return dict.fromkeys(self.slots, Additive(sigma, along=along))


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

    base = trainable.trainable(make, shape)
    params, state = jax.eval_shape(base.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    facts = {
        "macs_m": jaxeff.cost(base.evaluate, params, state, x).macs / 1e6,
        "parameters_m": sum(leaf.size for leaf in jax.tree.leaves(params)) / 1e6,
        "slots": len(base.slots),
    }
    return Network(**vars(base), last="fc" if name == "resnet18" else "fc3", facts=facts)


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
