"""The cost of a program: parameters, multiply-accumulates, bits and bit operations, by layer.

`summary` shows it as a table for people, `sites` the names alone.

MACs count the products of dot products and convolutions, the measure of Klein's thesis; pointwise
functions, pooling and additions count nothing. Padding counts as work, as in the usual formula
(output size x kernel size x input channels / groups). Zeros between the inputs of a transposed
convolution don't count: there the formula is input size x kernel size x output channels / groups,
in which what falls beyond the borders counts: a strided convolution and its transpose cost the
same. A scan's body counts once per iteration, a cond counts its most expensive branch, and a while
loop (its trip count isn't known) one iteration.

```python
import jax
import jaxeff
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
assert jaxeff.sites(f, params, x)[:3] == ("input", "conv1", "relu")
small = jaxeff.quantized(f, {"*:linear": jaxeff.Int(4, 8)})
print(jaxeff.summary(small, params, x[:1]))
jaxeff.cost(small, params, x[:1]).size                   # bytes; also .peak, .bops, .macs, .params
```
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxeff import core
from jaxeff.program._spec import SpecError, resolve
from jaxeff.program.ir import Contraction, Layer, Node, Program, Value, branch_operands, repetitions
from jaxeff.program.ir import primitives as prim
from jaxeff.program.reading import trace

_SCOPE = re.compile(r"jaxeff\[bits\]\((?P<name>\w+), (?P<width>[^,]+), (?P<storage>[^,]+)\)")


class Widths(NamedTuple):
    """Bits per number in one layer; None is what the dtype has.

    Sharp edge: a width that is traced, as that of a policy swept by `vmap`, has no number to write
    down; such arrays count in their dtypes.

    Attributes:
        weights: Bits of its weights; of the first operand where both are data.
        activations: Bits of what its dot product or convolution reads; the wider where these are
            two.
        results: Bits of what it returns.
        storage: Bits of all its weights together, with the scales or codebooks that decode them;
            None: as many as the codes.
    """

    weights: float | None = None
    activations: float | None = None
    results: float | None = None
    storage: float | None = None


Bits = Mapping[str, Widths | tuple[float, float]]
"""By site, widths or a pair of them, of weights and activations."""


def bits_scope(name: str, width: Any, storage: Any) -> str | None:
    """Returns the name scope under which an array is quantized; None if its width isn't known.

    Widths are given by site, or read from a quantized function. A transform that quantizes an array
    does so under a name scope with its width, `bits_scope`. So the program of a quantized function
    holds its bits, also inside other transforms, and they are counted without a spec.

    Args:
        name: The array's among those of its layer: "weights_1", "input_0", "output_0".
        width: Bits of one number.
        storage: Bits of the array with what decodes it.
    """
    if not (is_scalar(width) and is_scalar(storage)):
        return None
    return f"jaxeff[bits]({name}, {float(width)!r}, {float(storage)!r})"


def is_scalar(value: Any) -> bool:
    """Returns whether a value is one number that can be looked at now."""
    return core.is_concrete(value) and getattr(value, "ndim", 0) == 0


def widths_of(program: Program, bits: Bits) -> dict[Layer, Widths]:
    """Returns the widths of every layer: those given for its site, else those its scopes say."""
    return {
        layer: Widths(*bits[layer.site]) if layer.site in bits else read(layer)
        for layer in program.walk()
    }


def read(layer: Layer) -> Widths:
    """Returns the widths that a layer was quantized to, by the name scopes of its equations."""
    formats: dict[str, tuple[float, float]] = {}
    for scope in dict.fromkeys(scope for node in layer.nodes for scope in node.scopes):
        if match := _SCOPE.fullmatch(scope):
            formats.setdefault(match["name"], (float(match["width"]), float(match["storage"])))
    weights = [of for name, of in formats.items() if name.startswith("weights")]
    results = [width for name, (width, _) in formats.items() if name.startswith("output")]
    inputs: list[float] = []
    if any(name.startswith("input") for name in formats):
        inputs = [
            formats[f"input_{i}"][0] if f"input_{i}" in formats else dtype_bits(layer.inputs[at])
            for i, at in enumerate(layer.data)  # a linear layer adds what isn't named: a shortcut
            if layer.kind != "linear" or f"input_{i}" in formats
        ]
    first = max((width for width, _ in weights), default=None)
    return Widths(
        min(inputs, default=None) if layer.kind == "matmul" else first,
        max(inputs, default=None),
        max(results, default=None),
        sum(storage for _, storage in weights) if weights else None,
    )


def is_quantizing(node: Node) -> bool:
    """Returns whether an equation is a quantizer's, not the layer's own."""
    return any(scope.startswith("jaxeff[quantize#") for scope in node.scopes)


def dtype_bits(value: Value) -> int:
    """Returns the bits of one number of an array as it is: of int4 and 4-bit floats four."""
    dtype = value.aval.dtype
    if jnp.issubdtype(dtype, jnp.integer):
        return int(jnp.iinfo(dtype).bits)
    return int(jnp.finfo(dtype).bits if jnp.issubdtype(dtype, jnp.floating) else dtype.itemsize * 8)


_IN_PLACE = {"elementwise", "normalization", "shape", "input"}


def live_bits(program: Program, widths: Mapping[Layer, Widths]) -> tuple[float, dict[Layer, float]]:
    """Returns the bits of activations that are there at first, and while each layer runs."""
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
    first = sum(size[v] for v in live)
    bits = {}
    for i, layer in enumerate(program.layers):
        live |= {place[v] for v in layer.outputs if v in kept}
        bits[layer] = sum(size[v] for v in live) + _inside(layer, widths)
        live = {v for v in live if end[v] > i}
    return first, bits


def peak_bits(program: Program, widths: Mapping[Layer, Widths]) -> float:
    """Returns the most bits of activations that are there at the same time.

    Peak memory of activations follows from the lifetimes of arrays. An array lives from the layer
    that makes it to the last one that reads it; while a layer runs, what it reads and what it makes
    are there. As a deployed network has it,

    - pointwise functions and batch norm by running statistics are computed as their operand is
      written, and a reshape is another view: where nobody else reads the operand, both are one
      array;
    - an array is kept in the bits at which it is read, or at which a layer's result is quantized;
      moving codes and taking their maximum gives codes;
    - parameters, state and temporaries inside a layer aren't counted; what a loop's body makes
      comes on top of what goes in and out.
    """
    first, by_layer = live_bits(program, widths)
    return max([first, *by_layer.values()])


def kept_widths(program: Program, widths: Mapping[Layer, Widths]) -> dict[Value, float]:
    """Returns the bits in which every activation is kept, in the order in which they are made."""
    over = _written_over(program)
    wanted: dict[Value, float] = {v: dtype_bits(v) for v in _results(program)}
    bits: dict[Value, float] = {}
    # Backwards: a value is kept in the widest format that any reader needs, and a reader that
    # passes codes on needs what its own readers do.
    for layer in reversed(program.layers):
        of_layer = widths[layer]
        for v in layer.outputs:
            if _is_counted(v):
                most = dtype_bits(v)
                bits[v] = min(wanted.get(v, most), of_layer.results or most)
        for v in (layer.inputs[i] for i in layer.data):
            width: float = dtype_bits(v)
            if layer.kind in {"linear", "matmul"}:
                width = of_layer.activations or width
            elif passes_codes(layer) or any(over.get(out) is v for out in layer.outputs):
                width = max((bits[out] for out in layer.outputs if out in bits), default=width)
            wanted[v] = max(wanted.get(v, 0), width)
    bits.update({v: wanted.get(v, dtype_bits(v)) for v in program.inputs if _is_counted(v)})
    return dict(reversed(bits.items()))


def carried_widths(program: Program, widths: Mapping[Layer, Widths]) -> dict[Value, float]:
    """Returns the bits per number of every activation, whatever its readers quantize to."""
    bits: dict[Value, float] = {v: dtype_bits(v) for v in program.inputs if _is_counted(v)}
    for layer in program.layers:
        data = [layer.inputs[i] for i in layer.data]
        moved = [bits[v] for v in data if v in bits] if passes_codes(layer) else []
        for v in layer.outputs:
            if _is_counted(v):
                bits[v] = widths[layer].results or max(moved, default=dtype_bits(v))
    return bits


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


@dataclass(frozen=True)
class LayerCost:
    """One layer's row.

    BOPs = MACs x activation bits x weight bits (Galen, arXiv 2212.07818). Bits are those of a
    function that was quantized, or what `bits` says; anything else has the bits of its dtypes.
    Parameters take the bits of their codes and of the scales or codebooks that decode them,
    activations as much memory as is live at once.

    Attributes:
        site: The name of the layer.
        kind: The kind of the layer.
        shape: Shape of its result.
        params: Scalars in the parameters it reads, each leaf counted where it is first read.
        macs: Multiply-accumulates for the traced batch.
        bops: Bit operations for the traced batch.
        weights: Number of `params` that its products read: what a quantizer of weights acts on.
        storage: Bits of `params` as they are stored. A leaf that is read in other bits elsewhere
            is stored, and counted, there too.
        weight_bits: Bits of one weight, where the layer multiplies; for a product of two
            activations, those of the first.
        activation_bits: Bits of what its weights are multiplied with.
        live: Bytes of the activations that are there while it runs; inside a loop or branch, those
            of all of it.
    """

    site: str
    kind: str
    shape: tuple[int, ...]
    params: int
    macs: int
    bops: float
    weights: int = 0
    storage: float = 0
    weight_bits: float | None = None
    activation_bits: float | None = None
    live: int = 0


@dataclass(frozen=True)
class Cost:
    """A program's rows and totals; `macs`, `bops` and `peak` are for the traced batch.

    Attributes:
        layers: A row each.
        peak: Bytes of the activations that are live at the same time, at most.
    """

    layers: tuple[LayerCost, ...]
    peak: int = 0

    @property
    def size(self) -> int:
        """Bytes of all parameters as they are stored."""
        return math.ceil(sum(row.storage for row in self.layers) / 8)

    @property
    def params(self) -> int:
        """Scalars in all parameters."""
        return sum(row.params for row in self.layers)

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return sum(row.macs for row in self.layers)

    @property
    def bops(self) -> float:
        """Bit operations."""
        return sum(row.bops for row in self.layers)


@core.validate(bits=core.string_mapping)
def cost(
    f: Callable[..., Any], params: Any, *args: Any, bits: Bits | None = None, **kwargs: Any
) -> Cost:
    """Computes the cost of `f` at the given shapes; a batch of one gives per-sample figures.

    Args:
        f: A pure function `f(params, *args)`.
        params: Arrays or `jax.ShapeDtypeStruct`s.
        *args: Further arguments.
        bits: `(weight bits, activation bits)` or `jaxeff.program.Widths` by site, for layers that
            will be quantized.
        **kwargs: Same as for `trace`.

    Raises:
        TypeError: `bits` is no mapping of pairs of numbers.
        ValueError: Bits are negative, infinite or NaN.
        SpecError: `bits` names a site that there isn't.
    """
    return program_cost(trace(f, params, *args, **kwargs), bits or {})


def program_cost(program: Program, bits: Bits) -> Cost:
    """Returns the cost of a program that has been traced already."""
    unknown = sorted(bits.keys() - {layer.site for layer in program.sites})
    if unknown:
        there = ", ".join(layer.site for layer in program.sites)
        raise SpecError(f"bits has {unknown[0]!r}, which is no site; there are {there}.")
    for site, pair in bits.items():
        _check_bits(site, pair)
    widths = widths_of(program, bits)
    store = _ParameterBits()
    for v in program.inputs:
        if v.is_weight:
            store.add(v)
    rows = _rows(program, widths, store)
    # Parameters that no layer reads are stored with the model all the same.
    if store.unread:  # read by no layer
        left = list(store.unread)
        count, kept = sum(store.unread.values()), store.as_they_are(left)
        rows.append(LayerCost("(other)", "other", (), count, 0, 0, storage=kept))
    return Cost(tuple(rows), math.ceil(peak_bits(program, widths) / 8))


def _check_bits(site: str, pair: Any) -> None:
    if not isinstance(pair, tuple | list) or not 2 <= len(pair) <= len(Widths._fields):
        raise TypeError(
            f"bits of {site!r} must be (weight bits, activation bits) or Widths, not {pair!r}."
        )
    for width in pair:
        if width is not None:
            core.check_number(f"bits of {site!r}", width, 0)


class _ParameterBits:
    """The parameter entries still to be counted, and the bits of those stored already."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.unread: dict[str, int] = {}
        self._bits: dict[str, int] = {}
        self._stored: set[Any] = set()

    def add(self, v: Value) -> None:
        """Adds a leaf; the mean and variance of a distribution share their path."""
        self.sizes[v.path] = self.unread[v.path] = self.sizes.get(v.path, 0) + v.aval.size
        self._bits[v.path] = self._bits.get(v.path, 0) + v.aval.size * dtype_bits(v)

    def read(self, paths: Iterable[str]) -> int:
        """Counts the scalars of leaves that no layer has read before."""
        return sum(self.unread.pop(path, 0) for path in paths)

    def as_they_are(self, paths: Iterable[str]) -> int:
        """Counts the bits of leaves that are stored in their dtypes, once each."""
        new = set(paths) - self._stored
        self._stored |= new
        return sum(self._bits.get(path, 0) for path in new)

    def in_codes(self, v: Value, bits: float, times: int) -> float:
        """Counts the bits of a weight that is stored as codes, `bits` for all of it.

        A weight that is used again in the same bits is stored once; parts of a leaf are others.
        """
        size = times * v.aval.size
        # A slice of a leaf is its own entry: two layers that read different halves store both.
        whole_leaves = [
            path for path in v.leaves if len(v.leaves) == 1 and size >= self.sizes[path]
        ]
        key = (*whole_leaves, bits / v.aval.size)
        if whole_leaves and key in self._stored:
            return 0
        self._stored.add(key)
        return bits * (self.sizes[whole_leaves[0]] / v.aval.size if whole_leaves else times)


def _rows(
    program: Program, widths: Mapping[Layer, Widths], store: _ParameterBits, times: int = 1
) -> list[LayerCost]:
    rows: list[LayerCost] = []
    carried = carried_widths(program, widths)
    _, live = live_bits(program, widths)
    for layer in program.layers:
        of_layer: list[LayerCost] = []
        if layer.kind == "control flow":
            of_layer = _control_rows(layer, widths, store, times)
        elif layer.site:
            of_layer = [_row(layer, widths[layer], carried, store, times)]
        rows += [replace(row, live=math.ceil(live[layer] / 8)) for row in of_layer]
    return rows


def _control_rows(
    layer: Layer, widths: Mapping[Layer, Widths], store: _ParameterBits, times: int
) -> list[LayerCost]:
    (node,) = layer.nodes
    bodies = [_rows(p, widths, store, times * repetitions(node)) for p in layer.programs]
    if branch_operands(node, node.inputs) is not None:
        costliest = max(bodies, key=lambda rows: sum(r.macs for r in rows))
        # All branches are stored, but only one runs: the most expensive one counts.
        idle = [r for rows in bodies if rows is not costliest for r in rows]
        return costliest + [replace(r, macs=0, bops=0) for r in idle]
    return [row for rows in bodies for row in rows]


def _row(
    layer: Layer, widths: Widths, carried: Mapping[Value, float], store: _ParameterBits, times: int
) -> LayerCost:
    macs = times * sum(node_macs(n) for n in layer.nodes)
    # `read` pops: a leaf that two layers share counts for the first one only.
    multiplied = [layer.inputs[i] for i in layer.weights] if macs else []
    read = [v for v in layer.inputs if v.is_weight]
    weights = sum(store.read(v.leaves) for v in multiplied)
    params = weights + sum(store.read(v.leaves) for v in read)
    storage: float = 0
    # A table that rows are looked up in has codes, too.
    coded = [layer.inputs[i] for i in layer.weights] if widths.weights is not None else []
    elements = sum(v.aval.size for v in coded)
    for v in read:
        if widths.weights is None or v not in coded:
            storage += store.as_they_are(v.leaves)
        else:
            of_all = elements * widths.weights if widths.storage is None else widths.storage
            storage += store.in_codes(v, of_all * v.aval.size / elements, times)
    if macs and not multiplied:  # what a method has learnt takes the place of the weights
        storage += times * (widths.storage or 0)
    first, second = _multiplied_bits(layer, widths, carried) if macs else (None, None)
    return LayerCost(
        layer.site,
        layer.kind,
        tuple(layer.outputs[0].aval.shape),
        params,
        macs,
        _integral(macs * (first or 0) * (second or 0)),
        weights,
        _integral(storage),
        first,
        second,
    )


def _multiplied_bits(
    layer: Layer, widths: Widths, carried: Mapping[Value, float]
) -> tuple[float, float]:
    """Returns the widths of what a dot product or convolution multiplies."""
    data = [carried.get(layer.inputs[i], 32) for i in layer.data]
    weights = [dtype_bits(layer.inputs[i]) for i in layer.weights] or data[:1]
    first = max(weights, default=32) if widths.weights is None else widths.weights
    second = max(data, default=32) if widths.activations is None else widths.activations
    return _integral(first), _integral(second)


def _integral(bits: float) -> float:
    """Returns the number, as an integer if it is one."""
    return int(bits) if bits == int(bits) else bits


def node_macs(node: Node) -> int:
    """Returns the multiply-accumulates of a dot product or convolution, zero for anything else."""
    return Contraction.of(node).macs if node.primitive in prim.LINEAR else 0


@core.shown_as_table
@dataclass(frozen=True)
class Summary:
    """A function's layers and what they cost; prints as a table, also in a notebook.

    Attributes:
        cost: The same as numbers.
        settings: Setting of each site, if a spec was given.
        verdict: What is known of the function's results beside their values; shown below the table.
    """

    cost: Cost
    settings: Mapping[str, Any] | None = field(default=None)
    verdict: str = ""

    def _table(self) -> core.Table:
        columns = ["site", "kind", "output", "params>", "MACs>", "BOPs>"]
        cells = [
            [
                row.site,
                row.kind,
                "x".join(map(str, row.shape)),
                *(_number(n) for n in (row.params, row.macs, row.bops)),
            ]
            for row in self.cost.layers
        ]
        total = ["total", "", "", *map(_number, (self.cost.params, self.cost.macs, self.cost.bops))]
        if any(
            min(row.weight_bits or 32, row.activation_bits or 32) < 32 for row in self.cost.layers
        ):
            columns += ["bits", "bytes>"]
            for row, of_layer in zip(self.cost.layers, cells, strict=True):
                of_layer += [_bits(row), _number(math.ceil(row.storage / 8))]
            total += ["", _number(self.cost.size)]
        if self.settings is not None:
            columns.append("setting")
            for row, of_layer in zip(self.cost.layers, cells, strict=True):
                known = row.site in self.settings
                of_layer.append(core.short_repr(self.settings[row.site]) if known else "")
            total.append("")
        caption = (
            f"{len(cells)} layers, {self.cost.size:,} bytes of parameters, "
            f"{self.cost.peak:,} of activations at a time"
        )
        caption = f"{caption}\n{self.verdict}" if self.verdict else caption
        return core.Table(columns, cells, total, caption)

    def __rich__(self) -> Any:
        """Returns the table, for `rich`."""
        return self._table().__rich__()


def _number(n: float) -> str:
    return (f"{n:,}" if isinstance(n, int) else f"{n:,.1f}") if n else ""


def _bits(row: LayerCost) -> str:
    """Returns the bits of weights and of activations."""
    if row.weight_bits is None or row.activation_bits is None:
        return ""
    return f"{row.weight_bits:.3g} x {row.activation_bits:.3g}"


@core.validate(bits=core.string_mapping, spec=core.spec_of(), verdict=core.instance_of(str))
def summary(
    f: Callable[..., Any],
    params: Any,
    *args: Any,
    bits: Bits | None = None,
    spec: Mapping[str, Any] | None = None,
    verdict: str = "",
    **kwargs: Any,
) -> Summary:
    """Returns the layers of `f`: site, kind, output shape, parameters, MACs and BOPs.

    A function that was quantized shows its bits, too, and the bytes that parameters take in them.

    Args:
        f: A pure function `f(params, *args)`.
        params: Arrays or `jax.ShapeDtypeStruct`s.
        *args: Further arguments; a batch of one gives per-sample figures.
        bits: Same as for `cost`: widths by site, of a network that will be quantized.
        spec: Settings by pattern, of any transform; a column says what each site gets. Costs are
            those of `f`; of `quantized(f, spec)` they are those in its bits.
        verdict: A text that is shown below the table, as `moments_check(...).verdict`: how far the
            variances of the function's moments can be trusted.
        **kwargs: Same as for `trace`.

    Raises:
        SpecError: As for the transform: a pattern of `spec` matches or decides no site, or two are
            equally specific at one.
    """
    program = trace(f, params, *args, **kwargs)
    settings = None if spec is None else resolve(spec, program)
    return Summary(program_cost(program, bits or {}), settings, verdict)


class Sites(tuple[str, ...]):
    """Names of layers; a notebook shows their kinds beside them."""

    kinds: tuple[str, ...]

    def _repr_html_(self) -> str:
        """Returns the names and kinds, for a notebook."""
        return core.Table(("site", "kind"), list(zip(self, self.kinds, strict=True)))._repr_html_()


@core.validate()
def sites(f: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> Sites:
    """Returns the names of every layer of `f`, in order of execution."""
    layers = trace(f, params, *args, **kwargs).sites
    names = Sites(layer.site for layer in layers)
    names.kinds = tuple(layer.kind for layer in layers)
    return names
