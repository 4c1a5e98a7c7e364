"""Rounding to a grid as `QuantizeLinear` and `DequantizeLinear`, which engines have kernels for.

`quantized` divides by the step, moves by the zero, rounds, clamps, and goes back. Sharp edge: these
operators round before the zero is added. A value in the middle of two codes goes to the even one of
two other numbers then, which may be its other neighbour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxeff_export.onnx_files._graph import OnnxGraph, Value

_HALF, _LAST = 128, 255


class _Rounding(NamedTuple):
    source: str
    step: float
    zero: float
    low: float
    high: float


def fuse_roundings(graph: OnnxGraph, results: Sequence[str]) -> None:
    """Replaces roundings to grids of at most 8 bits, and drops what nobody reads any more."""
    nodes, graph.nodes = graph.nodes, []
    makers = {node.output[0]: node for node in nodes}
    same: dict[str, str] = {}
    for node in nodes:
        # What a replaced rounding made is read from its successor from here on.
        for reader in _with_inner(node):
            reader.input[:] = [same.get(name, name) for name in reader.input]
        found = _rounding(graph, makers, node)
        if found is not None and (made := _emit(graph, found)) is not None:
            same[node.output[0]] = made
        elif (other := _straight_through(makers, same, node)) is not None:
            same[node.output[0]] = other
        else:
            graph.nodes.append(node)
    # From the results backwards: a node comes after all that it reads.
    needed = Counter(results)
    kept = []
    for node in reversed(graph.nodes):
        if any(needed[name] for name in node.output):
            needed.update(name for reader in _with_inner(node) for name in reader.input)
            kept.append(node)
    graph.nodes = kept[::-1]
    graph.constants = {n: a for n, a in graph.constants.items() if needed[n]}


def _with_inner(node: Any) -> Iterator[Any]:
    """Yields a node and those of the graphs that it holds, which read names from outside too."""
    yield node
    for attribute in node.attribute:
        for inner in attribute.g.node:
            yield from _with_inner(inner)


def _rounding(graph: OnnxGraph, makers: Mapping[str, Any], node: Any) -> _Rounding | None:
    """Reads `(clamp(round(x / step - zero), low, high) + zero) * step`, from its end."""
    numbers: list[float] = []
    for op in ("Mul", "Add", "Min", "Max", "Round", "Sub", "Div"):
        if node is None or node.op_type != op:
            return None
        names = list(node.input)
        if op != "Round":
            constant = [name for name in names if name in graph.constants]
            if len(constant) != 1 or (op in ("Sub", "Div") and constant[0] != names[1]):
                return None
            array = graph.constants[constant[0]]
            if array.size != 1 or array.dtype != np.float32:
                return None
            numbers.append(float(array.item()))
            names.remove(constant[0])
        source, node = names[0], makers.get(names[0])
    step, zero, high, low, moved, divisor = numbers
    # A symmetric grid of one bit lies between whole numbers: no integer stands for its zero.
    if (step, zero) != (divisor, moved) or zero != round(zero):
        return None
    return _Rounding(source, step, zero, low, high)


def _emit(graph: OnnxGraph, r: _Rounding) -> str | None:
    # Unsigned, as `integer` has them: engines on x86 multiply unsigned by signed codes.
    low, high, zero = (number + _HALF for number in (r.low, r.high, -r.zero))
    if min(low, zero) < 0 or max(high, zero) > _LAST:
        return None
    x, step = r.source, np.float32(r.step)
    # The operator clamps to what 8 bits hold; fewer bits, or symmetric ones, end before.
    if (low, high) != (0, _LAST):
        ends = [np.asarray((end + r.zero) * step, np.float32) for end in (r.low, r.high)]
        x = graph.emit("Clip", [x, *ends])
    grid: list[Value] = [np.asarray(step), np.asarray(zero).astype(np.uint8)]
    codes = graph.emit("QuantizeLinear", [x, *grid])
    return graph.emit("DequantizeLinear", [codes, *grid])


def _straight_through(makers: Mapping[str, Any], same: Mapping[str, str], node: Any) -> str | None:
    """Returns the rounded values of `rounded + (x - x)`, whose second term is a gradient's."""
    if node.op_type != "Add":
        return None
    rounded, rest = node.input
    maker = makers.get(rest)
    if rounded not in same.values() or maker is None or maker.op_type != "Sub":
        return None
    return rounded if maker.input[0] == maker.input[1] else None
