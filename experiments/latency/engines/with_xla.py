"""XLA: the method's function under `jax.jit`, weights on the device.

Several networks (samples, members) run as a loop, vmapped, or written out one after the other;
which is fastest depends on network and batch.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

import jax

from experiments.latency.engines import Contestant, Setup
from experiments.latency.networks import SEVERAL, Subject
from experiments.timing import metered


def contestants(net: Subject, methods: Collection[str], setup: Setup) -> Iterator[Contestant]:
    """Every method; those of several networks in three forms, their weights drawn beforehand."""
    del setup
    for method in methods:
        if method not in SEVERAL:
            yield _contestant(net, method, *net.program(method))
            continue
        stacked = net.stacked(method)
        loop = lambda weights, x: jax.lax.map(lambda w: net.f(w, x), weights)  # noqa: E731
        yield _contestant(net, method, loop, stacked, "map")
        yield _contestant(net, method, jax.vmap(net.f, (0, None)), stacked, "vmap")
        yield _contestant(net, method, *net.program(method), "unrolled")


def _contestant(
    net: Subject, method: str, g: Callable[..., Any], params: Any, form: str = ""
) -> Contestant:
    compiled = jax.jit(g).lower(params, net.x).compile()
    return Contestant(method, "xla", metered(lambda: compiled(params, net.x)), 0.0, form)
