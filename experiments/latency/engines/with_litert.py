"""LiteRT (once TensorFlow Lite) on the CPU: XNNPACK, which it delegates float32 networks to."""

from collections.abc import Collection, Iterator

import jax

from experiments.contests.litert_graph import build, started
from experiments.latency.engines import Contestant, Setup, deviation
from experiments.latency.networks import Subject
from experiments.timing import metered


def contestants(net: Subject, methods: Collection[str], setup: Setup) -> Iterator[Contestant]:
    """The deterministic network; XNNPACK has no error function for moments to be quick with.

    A call is `invoke` alone: its input is in place, its result isn't copied, as in TVM's clock.
    """
    if "deterministic" not in methods:
        return
    call, found = started(build(net), net.x, setup.threads)
    expected = jax.jit(net.f)(net.params, net.x)
    yield Contestant("deterministic", "litert", metered(call), deviation(found, expected))
