"""LiteRT (once TensorFlow Lite) on the CPU: XNNPACK, which it delegates float32 networks to."""

from collections.abc import Collection, Iterator

import jax

from experiments.latency.engines import Contestant, Setup, deviation
from experiments.latency.networks import Subject
from experiments.litert_layers import FORWARD, Layers, started
from experiments.timing import metered


def contestants(net: Subject, methods: Collection[str], setup: Setup) -> Iterator[Contestant]:
    """The deterministic network; XNNPACK has no error function for moments to be quick with.

    A call is `invoke` alone: its input is in place, its result isn't copied, as in TVM's clock.
    """
    if "deterministic" not in methods:
        return
    layers = Layers()
    x = layers.tensor(net.x.shape, "float32")
    model = layers.model(x, FORWARD[net.model](layers, net.params, None, x))
    call, found = started(model, net.x, setup.threads)
    expected = jax.jit(net.f)(net.params, net.x)
    yield Contestant("deterministic", "litert", metered(call), deviation(found, expected))
