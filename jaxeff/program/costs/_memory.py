"""Peak memory of a program's activations, from the lifetime of every array.

An array lives from the layer that makes it to the last one that reads it; while a layer runs, what
it reads and what it makes are there. As a deployed network has it,

- pointwise functions and batch norm by running statistics are computed as their operand is written,
  and a reshape is another view: where nobody else reads the operand, both are one array;
- an array is kept in the bits at which it is read, or at which a layer's result is quantized;
  moving codes and taking their maximum gives codes;
- parameters, state and temporaries inside a layer aren't counted; what a loop's body makes comes on
  top of what goes in and out.
"""

from collections import Counter
from collections.abc import Mapping

from jaxeff.program.costs._widths import Widths, dtype_bits, is_quantizing
from jaxeff.program.ir import Layer, Program, Value
from jaxeff.program.ir import primitives as prim

_IN_PLACE = {"elementwise", "normalization", "shape", "input"}


def peak_bits(program: Program, widths: Mapping[Layer, Widths]) -> float:
    """Returns the most bits of activations that are there at the same time."""
    over = _written_over(program)
    kept = kept_widths(program, widths)
    # Results computed in place share an array with their operand, along whole chains of layers.
    place: dict[Value, Value] = {}  # the first array of each chain
    size: dict[Value, float] = {}
    for v, width in kept.items():
        place[v] = place[over[v]] if v in over else v
        size[place[v]] = v.aval.size * width
    end = dict.fromkeys(size, -1)
    for i, layer in enumerate(program.layers):
        end.update({place[v]: i for v in layer.inputs if v in kept})
    end.update({place[v]: len(program.layers) for v in _results(program) if v in kept})

    live = {place[v] for v in program.inputs if v in kept}
    peak = sum(size[v] for v in live)
    for i, layer in enumerate(program.layers):
        live |= {place[v] for v in layer.outputs if v in kept}
        peak = max(peak, sum(size[v] for v in live) + _inside(layer, widths))
        live = {v for v in live if end[v] > i}
    return peak


def kept_widths(program: Program, widths: Mapping[Layer, Widths]) -> dict[Value, float]:
    """Returns the bits in which every activation is kept, in the order in which they are made."""
    over = _written_over(program)
    wanted: dict[Value, float] = {v: dtype_bits(v) for v in _results(program)}
    found: dict[Value, float] = {}
    # Backwards: a value is kept in the widest format that any reader needs, and a reader that
    # passes codes on needs what its own readers do.
    for layer in reversed(program.layers):
        own = widths[layer]
        for v in layer.outputs:
            if _is_counted(v):
                most = dtype_bits(v)
                found[v] = min(wanted.get(v, most), own.results or most)
        for v in (layer.inputs[i] for i in layer.data):
            width: float = dtype_bits(v)
            if layer.kind in {"linear", "matmul"}:
                width = own.activations or width
            elif passes_codes(layer) or any(over.get(out) is v for out in layer.outputs):
                width = max((found[out] for out in layer.outputs if out in found), default=width)
            wanted[v] = max(wanted.get(v, 0), width)
    found.update({v: wanted.get(v, dtype_bits(v)) for v in program.inputs if _is_counted(v)})
    return dict(reversed(found.items()))


def carried_widths(program: Program, widths: Mapping[Layer, Widths]) -> dict[Value, float]:
    """Returns the bits per number of every activation, whatever its readers quantize to."""
    found: dict[Value, float] = {v: dtype_bits(v) for v in program.inputs if _is_counted(v)}
    for layer in program.layers:
        data = [layer.inputs[i] for i in layer.data]
        moved = [found[v] for v in data if v in found] if passes_codes(layer) else []
        for v in layer.outputs:
            if _is_counted(v):
                found[v] = widths[layer].results or max(moved, default=dtype_bits(v))
    return found


def passes_codes(layer: Layer) -> bool:
    """Returns whether a layer turns codes into codes: it moves them, or takes a maximum."""
    if layer.kind in {"shape", "input"}:
        return True
    return layer.kind == "pooling" and layer.head.primitive is prim.p.reduce_window_max_p


def _written_over(program: Program) -> dict[Value, Value]:
    """Returns the operand in whose place each result is computed, where there is one."""
    uses = Counter([*(v for layer in program.layers for v in layer.inputs), *_results(program)])
    age = {v: i for i, v in enumerate(program.inputs)}
    over: dict[Value, Value] = {}
    for layer in program.layers:
        age.update({v: len(age) + i for i, v in enumerate(layer.outputs)})
        if layer.kind not in _IN_PLACE or len(layer.outputs) > 1 or _reduces(layer):
            continue
        (out,) = layer.outputs
        operands = [v for v in (layer.inputs[i] for i in layer.data) if uses[v] == 1 and v in age]
        same = [v for v in operands if _is_counted(v) and v.aval.size == out.aval.size]
        if same and _is_counted(out):
            over[out] = max(same, key=age.__getitem__)
    return over


def _reduces(layer: Layer) -> bool:
    """Returns whether it needs all of its operand first; finding a range doesn't count."""
    return any(n.primitive in prim.REDUCTION and not is_quantizing(n) for n in layer.nodes)


def _inside(layer: Layer, widths: Mapping[Layer, Widths]) -> float:
    """Returns what the costliest body of a loop or branch takes on top of what goes in and out."""
    if layer.kind != "control flow":
        return 0
    return max((_on_top(body, widths) for body in layer.programs), default=0)


def _on_top(body: Program, widths: Mapping[Layer, Widths]) -> float:
    kept = kept_widths(body, widths)
    ends = {v for v in (*body.inputs, *_results(body)) if v in kept}
    return max(peak_bits(body, widths) - sum(v.aval.size * kept[v] for v in ends), 0)


def _results(program: Program) -> list[Value]:
    return [v for v in program.outputs if isinstance(v, Value)]


def _is_counted(v: Value) -> bool:
    return v.is_data and hasattr(v.aval.dtype, "itemsize")
