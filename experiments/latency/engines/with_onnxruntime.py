"""ONNX Runtime on the CPU, with every graph optimization it has."""

from collections.abc import Collection, Iterator

import jax
import numpy as np
import onnxruntime

from experiments.latency.engines import Contestant, Setup, deviation
from experiments.latency.engines.onnx_graph import build
from experiments.latency.networks import SEVERAL, Subject
from experiments.timing import metered


def contestants(net: Subject, methods: Collection[str], setup: Setup) -> Iterator[Contestant]:
    """The methods of a single pass."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = setup.threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    for method in methods:
        if method in SEVERAL:
            continue
        g, params = net.program(method)
        model = build(net.model, params, net.x.shape, method == "moments")
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        feed = {"x": np.asarray(net.x)}

        def call(session=session, feed=feed):  # type: ignore[no-untyped-def]
            return session.run(None, feed)

        expected = jax.tree.leaves(jax.jit(g)(params, net.x))
        found = [a.reshape(b.shape) for a, b in zip(call(), expected, strict=True)]
        yield Contestant(method, "onnxruntime", metered(call), deviation(found, expected))
