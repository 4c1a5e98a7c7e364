"""How good the rule for register tiles is: every tile of a layer on the clock.

Tiles of integer kernels come from a count of loads and of idle pipelines
(`jaxeff_export.operators.integer`), not from a search. Here all tiles of the layers of
three networks that fill at least half of the registers are timed, and the best of them meets the
rule's in alternating rounds.
"""

import statistics
from typing import Any

import numpy as np
import tvm
from jaxeff_export.compiler import compilation_target
from jaxeff_export.operators import integer as operators

from experiments.contests.tvm import host, kernel_meter
from experiments.timing import measure_rounds, ratio

LAYERS: tuple[tuple[str, Any], ...] = (
    ("mlp 784-100", (784, 100)),
    ("mlp 100-10", (100, 10)),
    ("lenet5 conv2", ((14, 14, 6), (5, 5, 6, 16), 1, 0, 2)),
    ("lenet5 400-120", (400, 120)),
    ("resnet18 stem", ((32, 32, 3), (3, 3, 3, 64), 1, 1, 1)),
    ("resnet18 64", ((32, 32, 64), (3, 3, 64, 64), 1, 1, 1)),
    ("resnet18 64-128", ((32, 32, 64), (3, 3, 64, 128), 2, 1, 1)),
    ("resnet18 shortcut", ((32, 32, 64), (1, 1, 64, 128), 2, 0, 1)),
    ("resnet18 128", ((16, 16, 128), (3, 3, 128, 128), 1, 1, 1)),
    ("resnet18 256", ((8, 8, 256), (3, 3, 256, 256), 1, 1, 1)),
    ("resnet18 512", ((4, 4, 512), (3, 3, 512, 512), 1, 1, 1)),
)
"""A dense layer's depth and columns, or an image, a kernel, its stride, padding and pooling."""
_FIRST_ROUNDS, _FINALISTS = 3, 4


def tiles(rounds: int, name: str, batch: int) -> list[dict[str, Any]]:
    """A row: the rule's tile of a layer, the best one, and how much faster that is."""
    geometry = _geometry(dict(LAYERS)[name], batch)
    where = compilation_target(host())
    dot = operators.dot_of(where)
    registers = dot.registers - 2
    chosen = operators.tile_of(geometry, dot.lanes, registers)
    given = operators.tiles_of(geometry, dot.lanes, registers)
    full = [t for t in given if t.pixels * t.vectors * t.chains * 2 >= registers]
    found = dict.fromkeys([chosen, *full])
    kernels = {f"tile{i}": _kernel(geometry, dot, tile) for i, tile in enumerate(found)}
    module = tvm.IRModule({name: f.with_attr("global_symbol", name) for name, f in kernels.items()})
    with where, tvm.transform.PassContext(opt_level=3, config={"tirx.disable_assert": True}):
        library = tvm.compile(module, where)
    arrays = [tvm.runtime.tensor(array) for array in _arrays(next(iter(kernels.values())))]

    meters = {kernel: kernel_meter(library, kernel, arrays) for kernel in kernels}
    first = measure_rounds(meters, _FIRST_ROUNDS, seconds=0.002)
    order = sorted(kernels, key=lambda kernel: min(first[kernel]))
    finalists = dict.fromkeys(["tile0", *order[:_FINALISTS]])
    times = measure_rounds({k: meters[k] for k in finalists}, rounds, seconds=0.002)
    best = min(finalists, key=lambda kernel: statistics.median(times[kernel]))
    row = {"table": "tiles", "layer": name, "batch": batch, "tiles": len(found)}
    row |= {
        "ms": statistics.median(times["tile0"]),
        "over_best": ratio(times["tile0"], times[best]),
    }
    return [row | {"tile": _words(chosen), "best": _words(list(found)[int(best[4:])])}]


def _words(tile: operators.DotTile) -> str:
    return f"{tile.rows}x{tile.columns} pixels, {tile.vectors} vectors, {tile.chains} chains"


def _geometry(layer: Any, batch: int) -> operators.Geometry:
    if len(layer) == 2:
        return operators.Geometry.dense(batch, *layer)
    image, kernel, stride, pad, pool = layer
    attributes: dict[str, Any] = {
        "padding": (pad,) * 4,
        "strides": (stride,) * 2,
        "dilation": (1, 1),
    }
    attributes |= {"groups": 1, "pool": (pool, pool)}
    return operators.Geometry.conv2d((batch, *image), kernel, attributes)


def _kernel(geometry: operators.Geometry, dot: operators.Dot, tile: operators.DotTile) -> Any:
    wide = operators.vectors_of(geometry, dot) * dot.lanes
    taps = [count for count, _ in geometry.taps]
    weights = (wide // dot.lanes, *taps, operators.words_of(geometry, dot), dot.lanes, dot.group)
    height, width, channels = geometry.image
    x = (width, channels) if geometry.is_dense else (geometry.batch, height, width, channels)
    y = (width, geometry.features) if geometry.is_dense else geometry.shape
    operands = [(x, "uint8"), (weights, dot.weight), ((wide,), "int32"), ((wide,), "float32")]
    attributes = {"result": "codes", "shortcut": "none", "zero": 3, "lower": 3, "upper": 255}
    attributes |= {"shortcut_zero": 0, "input_zero": 3}
    return operators.contraction(
        geometry, dot, attributes, operators.epilogue_of, operands, y, operators.Sharing(), tile
    )


def _arrays(kernel: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [([int(n) for n in p.shape], str(p.dtype)) for p in kernel.params]
    return [rng.integers(0, 100, shape).astype(dtype) for shape, dtype in shapes]
