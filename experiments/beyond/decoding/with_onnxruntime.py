"""Products on ONNX Runtime, on one thread, and the files that OpenVINO reads, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from experiments.contests.onnx_graph import finish, started


def calls(params: Any, x: Any) -> dict[str, Callable[[], Any]]:
    """Returns a call for every format."""
    return {form: started(file, x, 1) for form, file in files(params, x).items()}


def files(params: Any, x: Any) -> dict[str, bytes]:
    """Writes the product as a file for every format."""
    w = np.asarray(params["w"], np.float32)
    depth, columns = w.shape
    shape, result = x.shape, {"y": (x.shape[0], columns)}
    models = {
        "float32": finish(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], [numpy_helper.from_array(w, "w")],
            shape, result,
        )
    }  # fmt: skip
    step = np.abs(w).max(0) / 127
    eight = [
        numpy_helper.from_array(np.rint(w / step).astype(np.int8), "w"),
        numpy_helper.from_array(step, "s"),
    ]
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "by", "zero"]),
        helper.make_node("MatMulInteger", ["q", "w", "zero"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["floats"], to=1),
        helper.make_node("Mul", ["by", "s"], ["unit"]),
        helper.make_node("Mul", ["floats", "unit"], ["y"]),
    ]
    models["int8"] = finish(nodes, eight, shape, result)
    rng = np.random.default_rng(0)
    for size in (32, 128):
        codes = rng.integers(0, 256, (columns, depth // size, size // 2)).astype(np.uint8)
        steps = rng.uniform(0.01, 0.02, columns * (depth // size)).astype(np.float32)
        node = helper.make_node(
            "MatMulNBits", ["x", "codes", "steps"], ["y"], domain="com.microsoft", K=depth,
            N=columns, bits=4, block_size=size, accuracy_level=4,
        )  # fmt: skip
        tensors = [numpy_helper.from_array(codes, "codes"), numpy_helper.from_array(steps, "steps")]
        models[f"int4 g{size}"] = finish([node], tensors, shape, result, ("com.microsoft",))
    return models
