"""ONNX Runtime on the CPU, with every graph optimization it has."""

from collections.abc import Collection, Iterator

import jax

from experiments.contests.onnx_graph import build, started
from experiments.latency.engines import Contestant, Setup, deviation
from experiments.latency.networks import SEVERAL, Subject
from experiments.timing import metered


def contestants(net: Subject, methods: Collection[str], setup: Setup) -> Iterator[Contestant]:
    """The methods of a single pass."""
    for method in methods:
        if method in SEVERAL:
            continue
        g, params = net.program(method)
        model = build(net.model, params, net.x.shape, method == "moments")
        call = started(model, net.x, setup.threads)
        expected = jax.tree.leaves(jax.jit(g)(params, net.x))
        found = [a.reshape(b.shape) for a, b in zip(call(), expected, strict=True)]
        yield Contestant(method, "onnxruntime", metered(call), deviation(found, expected))
