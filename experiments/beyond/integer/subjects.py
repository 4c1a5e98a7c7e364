"""The networks, their batch norms folded, as functions and as integer ones."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
from flax import nnx

import jaxeff
from jaxeff.compression import Converted, Int, Integer, calibrate, fold_batch_norm, integer
from jaxeff.nn import MLP, LeNet5, ResNet18

NETWORKS: dict[str, tuple[Callable[[nnx.Rngs], nnx.Module], tuple[int, ...]]] = {
    "mlp": (lambda rngs: MLP((784, 100, 100, 10), rngs=rngs), (784,)),
    "lenet5": (lambda rngs: LeNet5(10, rngs=rngs), (28, 28, 1)),
    "resnet18": (lambda rngs: ResNet18(10, stem="cifar", rngs=rngs), (32, 32, 3)),
}
"""How a network is made, and the shape of one input."""


@dataclasses.dataclass(frozen=True)
class Subject:
    """A network and a batch."""

    model: str  # one of `NETWORKS`
    f: Callable[..., Any]  # the network as `f(params, x)`
    params: Any  # its parameters, random: no engine's speed depends on them
    x: jax.Array  # the batch

    def integer(
        self, bits: int, requantize: Literal["float", "fixed"] = "float"
    ) -> tuple[Integer, Converted]:
        """The network in codes, ranges by the batch, and its parameters."""
        wanted = {"*:linear": Int(bits, 8)}
        spec = calibrate(self.f, self.params, [self.x], wanted).spec
        g = integer(self.f, spec, requantize=requantize)
        return g, g.convert(self.params, self.x)


def subject(model: str, batch: int) -> Subject:
    """A network of `NETWORKS`."""
    f, params = _network(model)
    x = jax.random.normal(jax.random.key(1), (batch, *NETWORKS[model][1]))
    return Subject(model, f, params, x)


@functools.cache
def _network(model: str) -> tuple[Callable[..., Any], Any]:
    make, shape = NETWORKS[model]
    net = make(nnx.Rngs(0))
    net.eval()
    f, params = jaxeff.functional(net)
    folded = model.startswith("resnet")
    return fold_batch_norm(f, params, jax.numpy.ones((1, *shape)))[:2] if folded else (f, params)
