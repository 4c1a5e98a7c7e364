"""LiteRT's int8 on XNNPACK: integer networks on the grids that ours are calibrated to.

Codes there are ours minus 128. Weights are ours, per channel; biases are on the grid of the sums.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from experiments.contests.litert_graph import FORWARD, Layers, started
from experiments.integer.subjects import Subject
from jaxeff.compression import Tensor, Uniform
from jaxeff.compression.integers import Codes, weight_codes

_WEIGHTS = Uniform(8, True, None, per="channel")


class _Int8(Layers):
    """Layers on codes; the grids of their inputs are given by site."""

    dtype = "int8"

    def __init__(self, grids: Mapping[str, Codes]):
        super().__init__()
        self.grids = grids
        self.same: dict[int, int] = {}  # what is only moved has the grid of what it comes from

    def on_grid(self, x: int, steps: Any, zeros: Any) -> int:
        of = schema.QuantizationParametersT()
        of.scale, of.zeroPoint = np.asarray(steps, np.float32), np.asarray(zeros, np.int64)
        of.quantizedDimension = 0
        self.tensors[x].quantization = of
        return x

    def read_on(self, x: int, grid: Codes) -> None:
        """Says the grid of a tensor, which its first reader knows."""
        while True:
            self.on_grid(x, [grid.step], [grid.zero - 128])
            if x not in self.same:
                return
            x = self.same[x]

    def moved(self, made: int, x: int) -> int:
        self.same[made] = x
        return made

    def operands(self, params: Any, x: int, order: Sequence[int]) -> list[int]:
        grid = self.grids[params["site"]]
        self.read_on(x, grid)
        kernel = params["kernel"]
        last = (kernel.ndim - 1,)
        tensor = Tensor(params["site"], "kernel", "weight", kernel.ndim, None, lambda: last)
        codes, of_weights = weight_codes(_WEIGHTS, kernel, tensor)
        steps = np.asarray(of_weights).reshape(-1)
        sums, zeros = steps * np.float32(grid.step), np.zeros(len(steps), np.int64)
        bias = np.rint(np.asarray(params["bias"]) / (steps * grid.step)).astype(np.int32)
        weights = self.on_grid(self.constant(np.transpose(np.asarray(codes), order)), steps, zeros)
        return [x, weights, self.on_grid(self.constant(bias), sums, zeros)]


def calls(net: Subject, threads: int) -> dict[str, Callable[[], Any]]:
    """A call of the network, which is `invoke` alone.

    Raises:
        AssertionError: Its results are others than the network's.
    """
    call, found = started(build(net), net.x, threads)
    near = np.asarray(jax.jit(net.f)(net.params, net.x))
    assert np.abs(found - near).max() < 0.1 * np.abs(near).max()
    return {"int8": call}


def build(net: Subject) -> bytes:
    """A network of int8, from float32 images to float32 results."""
    spec = net.spec(8)
    grids = {site: _grid(site, of.range) for site, of in spec.items() if of is not None}
    params = {site: {**of, "site": site} for site, of in net.params.items()}
    layers = _Int8(grids)
    x = layers.tensor(net.x.shape, "float32")
    codes = layers.operate("QUANTIZE", [x], net.x.shape, "QuantizeOptions")
    last = FORWARD[net.model](layers, params, None, codes)
    found = np.asarray(jax.jit(net.f)(net.params, net.x))
    layers.read_on(last, _grid("result", (found.min(), found.max())))
    shape = layers.shape(last)
    result = layers.operate("DEQUANTIZE", [last], shape, "DequantizeOptions", dtype="float32")
    return layers.model(x, result)


def _grid(site: str, ends: Any) -> Codes:
    low, high = (float(end) for end in ends)
    return Codes.of(Uniform(8, False, (low, high)), Tensor(site, "input_0", "activation", 1))
