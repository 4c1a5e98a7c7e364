"""The networks, their batch norms folded, as functions, as integer ones and as ONNX graphs."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
from flax import nnx

import jaxeff
from jaxeff.compression import Converted, Int, Integer, calibrate, fold_batch_norm, integer
from jaxeff.nn import MLP, LeNet5, ResNet18

SHAPES = {"mlp": (784,), "lenet5": (28, 28, 1), "resnet18": (32, 32, 3)}


@dataclasses.dataclass(frozen=True)
class Subject:
    """A network and a batch.

    Attributes:
        model: One of `SHAPES`.
        f: The network as `f(params, x)`.
        params: Its parameters, random: no engine's speed depends on them.
        x: The batch.
    """

    model: str
    f: Callable[..., Any]
    params: Any
    x: jax.Array

    def spec(self, bits: int, activations: int = 8) -> dict[str, Any]:
        """Grids of weights, and of activations by their ranges in the batch."""
        wanted = {"*:linear": Int(bits, activations, symmetric="weights")}
        return dict(calibrate(self.f, self.params, [self.x], wanted))

    def integer(
        self, bits: int, requantize: Literal["float", "fixed"] = "float"
    ) -> tuple[Integer, Converted]:
        """The network in codes, and its parameters."""
        g = integer(self.f, self.spec(bits), requantize=requantize)
        return g, g.convert(self.params, self.x)


def subject(model: str, batch: int) -> Subject:
    """A network of `SHAPES`."""
    f, params = _network(model)
    x = jax.random.normal(jax.random.key(1), (batch, *SHAPES[model]))
    return Subject(model, f, params, x)


@functools.cache
def _network(model: str) -> tuple[Callable[..., Any], Any]:
    rngs = nnx.Rngs(0)
    if model == "mlp":
        return jaxeff.functional(MLP((784, 100, 100, 10), rngs=rngs))
    if model == "lenet5":
        return jaxeff.functional(LeNet5(10, rngs=rngs))
    net = ResNet18(10, stem="cifar", rngs=rngs)
    net.eval()
    f, params = jaxeff.functional(net)
    return fold_batch_norm(f, params, jax.numpy.ones((1, *SHAPES[model])))
