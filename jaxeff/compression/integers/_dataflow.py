"""What a program does with the values of an integer network: biases, several readers, loops.

A linear layer adds to its product a number for each output, or one for each position too. A bias is
the former and goes into the accumulator of its output. An embedding of positions that stands right
after a product is read as its bias as well, and is added as a shortcut is.

A product is computed where its result is written. For readers on several grids, or of floats too,
that would be twice, with all the multiplications, so such a result is written as floats once, and
the codes of its readers are made of these.

A sum goes into the accumulator of the operand with the longest sums of products. The other one, its
shortcut, is read as the codes that it has there already, from a product in front of the sum, and
else as floats: what stands behind a sum doesn't change it.

What depends on parameters alone, such as the codes of a weight, is made once, in front of a loop: a
body is evaluated there for the arrays that it makes, and the loop's own body is given them. Where
each iteration reads parameters of its own (a scan over stacked layers), these arrays are stacked
too. The carry is an array of floats, from which each product makes the codes that it reads.

Sharp edge: a weight that iterations change has no codes that could be made before; its products
stay in float.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxeff.compression._quantized import is_look_up, of_inputs
from jaxeff.compression.integers import _layers as read
from jaxeff.compression.integers._layers import Kernel, kernel_of
from jaxeff.compression.integers._operators import Codes, IntegerError, is_open
from jaxeff.compression.integers._packed import packed_kernel, takes_packed
from jaxeff.compression.numerics import LayerQuantization
from jaxeff.core import Literal
from jaxeff.program import Layer, Program, plain_rule
from jaxeff.program import control_flow as control
from jaxeff.program import evaluate as evaluated
from jaxeff.program.ir import Node, Scan, While, axes, branch_operands
from jaxeff.program.ir import primitives as prim

Makers = Mapping[Any, Node]


def makers_of(program: Program) -> Makers:
    """Returns the node that makes each value of a program."""
    nodes = (node for layer in program.layers for node in layer.nodes)
    return {v: node for node in nodes for v in node.outputs}


def is_by_output(layer: Layer, kernel: Kernel, makers: Makers) -> bool:
    """Returns whether a layer adds one number to each output of its kernel, or nothing."""
    if not layer.biases:
        return True
    rank = len(layer.outputs[0].aval.shape)
    outputs = (kernel.order or range(rank))[rank - kernel.columns :]
    varying = [_varies(_spread(layer, layer.inputs[i]), makers) for i in layer.biases]
    return kernel.takes_affine and all(moving <= set(outputs) for moving in varying)


def _spread(layer: Layer, v: Any) -> Any:
    """Follows what a layer adds to where it has as many axes as the layer's result."""
    rank = len(layer.outputs[0].aval.shape)
    for node in layer.nodes:
        if len(v.aval.shape) < rank and list(node.values) == [v] and len(node.outputs) == 1:
            (v,) = node.outputs
    return v


def _varies(v: Any, makers: Makers) -> set[int]:
    """Finds the axes along which the entries of a value may differ."""
    all_axes = {axis for axis, n in enumerate(v.aval.shape) if n != 1}
    node = makers.get(v)
    if node is None or len(node.outputs) != 1:
        return all_axes
    varying = set(node.signature.distinct)
    for number, operand in enumerate(node.inputs):
        # An empty state times a weight, say, is one row for all examples.
        moving = set() if isinstance(operand, Literal) else _varies(operand, makers)
        known = tuple(axis if axis in moving else None for axis in range(operand.aval.ndim))
        after = axes.followed(node.signature, known, number)
        if after is None:
            return all_axes
        varying |= {axis for axis, of in enumerate(after) if of is not None}
    return varying & all_axes


def added_by(layer: Layer, values: Sequence[Any]) -> Array:
    """Computes what a linear layer adds to its product, in the shape of its result."""
    shape, operands = layer.outputs[0].aval.shape, list(values)
    first = layer.biases[0]
    if len(layer.biases) == 1 and jnp.ndim(operands[first]) == len(shape):
        return jnp.broadcast_to(operands[first].astype(jnp.float32), shape)
    for i in (*layer.data, *layer.weights):
        # Without data and weights what is left is the bias.
        operands[i] = jnp.zeros(layer.inputs[i].aval.shape, layer.inputs[i].aval.dtype)
    return layer.fn(*operands)[0].astype(jnp.float32)


def bias_of(layer: Layer, kernel: Kernel, values: Sequence[Any]) -> Array:
    """Computes what a linear layer adds, a number for each output of its kernel."""
    return kernel.column_of(added_by(layer, values))


def needed_leaves(v: Any, makers: Makers) -> set[str]:
    """Finds the parameters that a value depends on: not those that only meet zeros.

    A recurrent cell starts with an empty state, whose product with a weight is zero. The weight
    isn't kept in float for it: leaves that nobody needs are zeros (`Converted.leaves`), and so is
    the product.
    """
    products = (prim.p.dot_general_p, prim.p.mul_p)
    leaves: set[str] = set()
    seen: set[Any] = set()
    open_values = [v]
    while open_values:
        value = open_values.pop()
        if value in seen:
            continue
        seen.add(value)
        node = makers.get(value)
        if node is None or value.is_data or node.graphs or node.primitive is prim.NAME:
            leaves |= value.leaves
        elif not (node.primitive in products and any(_is_zero(a, makers) for a in node.inputs)):
            open_values += node.values
    return leaves


def _is_zero(v: Any, makers: Makers) -> bool:
    """Returns whether a value is made of zeros that the program has written down."""
    if isinstance(v, Literal):
        return not np.any(v.val)
    node = makers.get(v)
    return (
        node is not None
        and node.primitive in prim.SHAPE
        and all(_is_zero(a, makers) for a in node.inputs)
    )


class Shortcut(NamedTuple):
    """What a sum adds to the accumulator of a product.

    Attributes:
        at: Number of the sum's input that it is.
        reader: The first layer that has codes of it, in front of the sum; None if it is floats.
    """

    at: int
    reader: Layer | None


def shortcuts_of(
    program: Program, settings: Mapping[str, LayerQuantization]
) -> dict[Layer, Shortcut]:
    """Finds the sums of a product and an array, in a program and its loops and branches."""
    bodies = list(programs_of(program))
    moving = changing(program)
    nodes = {v: node for body in bodies for v, node in makers_of(body).items()}
    shortcuts: dict[Layer, Shortcut] = {}
    for body in bodies:
        makers = {v: layer for layer in body.layers for v in layer.outputs}
        readers: dict[Any, Layer] = {}
        depth = functools.partial(_depth, makers, nodes, moving, settings)
        for layer in body.layers:
            if _kernel(layer, moving, settings) is not None:
                # A value has codes from the first product on that reads it; later sums take them.
                readers.setdefault(layer.inputs[layer.data[0]], layer)
            elif layer.site not in settings and read.is_sum(layer):
                depths = [depth(v) for v in layer.inputs]
                at = 1 - depths.index(max(depths))
                other = layer.inputs[at]
                if max(depths) and other.aval.shape == layer.outputs[0].aval.shape:
                    kept = _keeps_codes(makers.get(other), moving, settings)
                    shortcuts[layer] = Shortcut(at, readers.get(other) if kept else None)
    return shortcuts


def _kernel(
    layer: Layer, moving: frozenset[Any], settings: Mapping[str, LayerQuantization]
) -> Kernel | None:
    """Returns the kernel by which a layer multiplies codes; None if it doesn't."""
    setting = settings.get(layer.site)
    if setting is None or layer.kind not in {"linear", "matmul"}:
        return None
    if any(v in moving for v in layer.inputs if not v.is_data):
        return None
    kernel = kernel_of(layer, setting)
    return None if isinstance(kernel, str) else kernel


def _depth(
    makers: Mapping[Any, Layer],
    nodes: Makers,
    moving: frozenset[Any],
    settings: Mapping[str, LayerQuantization],
    v: Any,
) -> int:
    """Counts the products per sum of the layer that a value is an affine map of; 0 for none."""
    layer = makers.get(v)
    if layer is None:
        return 0
    if layer.site in settings:
        kernel = _kernel(layer, moving, settings)
        # What is added for each position has taken the place of a shortcut.
        takes = kernel is not None and kernel.takes_affine and is_by_output(layer, kernel, nodes)
        return kernel.depth if kernel is not None and takes else 0
    # Batch norms in training too: then a network is trained as what it becomes.
    channels = _channels(makers, moving, settings, v)
    norm = read.is_batch_norm(layer, channels) and v is layer.outputs[0]
    affine = read.is_affine(layer, channels) or norm
    if not affine or any(v in moving for v in layer.inputs if not v.is_data):
        return 0
    return _depth(makers, nodes, moving, settings, layer.inputs[layer.data[0]])


def _channels(
    makers: Mapping[Any, Layer],
    moving: frozenset[Any],
    settings: Mapping[str, LayerQuantization],
    v: Any,
) -> int:
    """Returns the axis of channels that the product behind a value has."""
    layer = makers.get(v)
    while layer is not None and layer.site not in settings and len(layer.data) == 1:
        layer = makers.get(layer.inputs[layer.data[0]])
    kernel = None if layer is None else _kernel(layer, moving, settings)
    return -1 if kernel is None else kernel.channels


def _keeps_codes(
    maker: Layer | None, moving: frozenset[Any], settings: Mapping[str, LayerQuantization]
) -> bool:
    """Returns whether codes of a layer's result are kept, which those of plain arrays aren't."""
    if maker is None or maker.kind in {"input", "control flow"}:
        return False
    setting = settings.get(maker.site)
    if setting is None or _kernel(maker, moving, settings) is not None:
        return True
    # A layer that the spec quantizes and no kernel takes gives an array, as a loop does.
    if any(v in moving for v in maker.inputs if not v.is_data):
        return False
    if maker.kind in {"linear", "matmul"}:
        return takes_packed(setting) and not isinstance(packed_kernel(maker), str)
    return is_look_up(maker)


def in_several_forms(
    program: Program, settings: Mapping[str, LayerQuantization], shortcuts: Mapping[Layer, Shortcut]
) -> set[Any]:
    """Finds the values of a program that are read in more than one form.

    Raises:
        IntegerError: A grid is none that integer kernels take.
    """
    readers: dict[Any, list[Layer]] = {}
    makers = {v: layer for layer in program.layers for v in layer.outputs}
    in_floats = {layer.inputs[s.at] for layer, s in shortcuts.items() if s.reader is None}
    for layer in program.layers:
        for i in layer.data:
            readers.setdefault(layer.inputs[i], []).append(layer)
    returned = {v for v in program.outputs if not isinstance(v, Literal)}
    several = set()
    for v, layers in readers.items():
        # With one reader the product is written in its form; None stands for floats.
        if len(layers) + (v in returned) > 1:
            channels = _channels(makers, frozenset(), settings, v)
            forms = {form for layer in layers for form in _forms(layer, settings, channels)}
            if len(forms | ({None} if v in returned or v in in_floats else set())) > 1:
                several.add(v)
    return several


def _forms(
    layer: Layer, settings: Mapping[str, LayerQuantization], channels: int
) -> tuple[Codes | None, ...]:
    """Lists the forms that a layer reads: codes, or floats (None); none if it is fused."""
    setting = settings.get(layer.site)
    if setting is None:
        taken = read.is_sum(layer) or read.is_affine(layer, channels) or read.is_move(layer)
        return () if taken or read.bounds_of(layer) else (None,)
    if isinstance(kernel_of(layer, setting), str):
        return (None,)
    grids = [
        Codes.of(quantizer, tensor)
        for quantizer, tensor, i in of_inputs(layer, setting, read.arrays_like(layer))
        if i in layer.data and not is_open(quantizer, tensor)
    ]
    return tuple(grids) or (None,)


class ParameterCache:
    """Store of arrays that depend on parameters alone: computed once, or converted before."""

    def __init__(self, converted: Mapping[str, Any] | None, computed: dict[str, Any]):
        self.converted, self.computed = converted, computed

    def put(self, site: str, name: str, make: Callable[[], Array]) -> Array:
        # Conversion makes an array where inference looks it up: both name it alike.
        key = f"{site}/{name}"
        if self.converted is not None:
            if key not in self.converted:
                raise IntegerError(_missing(key, site, self.converted))
            return self.converted[key]  # type: ignore[no-any-return]
        if key not in self.computed:
            self.computed[key] = make()
        return self.computed[key]  # type: ignore[no-any-return]


def _missing(key: str, site: str, codes: Mapping[str, Any]) -> str:
    """Says what converted parameters were made for, if not for this function."""
    others = [name for name in codes if name.startswith(f"{site}/scale")]
    if key.startswith(f"{site}/scale") and others:
        # The layer has codes, and scales for another grid: results were asked for in another form.
        return (
            f"The converted parameters write {site!r} on another grid than this function does: "
            "they were made by another spec, or by the wrong one of two functions. Those of "
            "g = integer(f, spec) are made by g.convert(params, x), and those of "
            "h = g.coded(params, x), whose results are codes, by h.convert(params, codes)."
        )
    return (
        f"The converted parameters have no {key}: they were made by another spec or for another "
        "function; call convert again."
    )


Evaluate = Callable[[Program, ParameterCache, Sequence[Any]], list[Any]]
"""`evaluate(program, store, values)`: the results of a body, in float."""
_Body = tuple[Program, list[Any], list[bool]]
"""A body, what it reads at first, and which of that iterations change."""


def programs_of(program: Program) -> Iterator[Program]:
    """Yields a program, and those of its loops and branches at any depth."""
    yield program
    for layer in program.layers:
        if layer.kind == "control flow":
            for body in layer.programs:
                yield from programs_of(body)


def changing(program: Program, moving: frozenset[Any] = frozenset()) -> frozenset[Any]:
    """Finds the values of a program's bodies that may differ from iteration to iteration.

    Rows of what a scan reads row by row aren't among them.
    """
    for layer in program.layers:
        if not moving.isdisjoint(layer.inputs):
            moving |= set(layer.outputs)
        if layer.kind == "control flow":
            # A value that changes outside changes inside of a loop within, too.
            for body, operands, carried in _bodies(layer, layer.nodes[0].inputs, lambda x: x):
                moves = [
                    move or (not isinstance(a, Literal) and a in moving)
                    for a, move in zip(operands, carried, strict=True)
                ]
                known = {v for v, move in zip(body.inputs, moves, strict=True) if move}
                moving |= changing(body, moving | known)
    return moving


def carried_leaves(program: Program) -> set[str]:
    """Finds the parameters that loops start from or that bodies return as they are."""
    layers = [layer for body in programs_of(program) for layer in body.layers]
    loops = [layer for layer in layers if layer.kind == "control flow"]
    # Without a layer in between, no rule sees that these are read.
    carried_values = [v for loop in loops for body in loop.programs for v in body.outputs]
    for loop in loops:
        for _, operands, carried in _bodies(loop, loop.nodes[0].inputs, lambda x: x):
            carried_values += [a for a, moves in zip(operands, carried, strict=True) if moves]
    return {path for v in carried_values if not isinstance(v, Literal) for path in v.leaves}


def run_body(
    layer: Layer, values: Sequence[Any], store: ParameterCache, evaluate: Evaluate
) -> Sequence[Any]:
    """Evaluates a control-flow layer whose bodies are computed with codes.

    `evaluate(program, store, values)` is for one of its programs; `store` holds the arrays that are
    made of parameters.
    """
    env = dict(zip(layer.inputs, values, strict=True))
    (node,) = layer.nodes
    arrays = [a.val if isinstance(a, Literal) else env[a] for a in node.inputs]
    if node.primitive is prim.p.scan_p:
        scan = Scan.of(node, arrays)
        if not scan.length:  # without a row there is nothing to make codes of, nor to compute
            return control.run(layer, None, values, _plain, None)
        rows = Scan.of(node, node.inputs).xs
        if any(getattr(v, "is_weight", False) for v in rows):
            outputs = dict(zip(node.outputs, _by_row(layer, scan, store, evaluate), strict=True))
            return [outputs[v] for v in layer.outputs]
    if store.converted is None:
        # What a loop makes inside can't leave it, so its first iteration is evaluated outside. Of
        # that only the arrays of parameters are used, so compilers leave the rest out.
        for program, operands, _ in _bodies(layer, arrays, lambda x: x[0]):
            evaluate(program, store, operands)
    inner = ParameterCache(store.computed if store.converted is None else store.converted, {})

    def body(program: Program, key: Any, values: Sequence[Any]) -> list[Any]:
        return evaluate(program, inner, values)

    return control.run(layer, None, values, body, None)


def _plain(program: Program, key: Any, values: Sequence[Any]) -> list[Any]:
    return evaluated(program, plain_rule, key, values)


def _by_row(layer: Layer, scan: Scan[Any], store: ParameterCache, evaluate: Evaluate) -> list[Any]:
    """Evaluates a scan that reads parameters row by row."""
    (program,) = layer.programs
    if store.converted is None:
        # Each row has parameters, and so codes, of its own: a scan over them stacks these.
        def convert(_: None, row: list[Any]) -> tuple[None, Mapping[str, Any]]:
            of_row = ParameterCache(None, {})
            evaluate(program, of_row, scan.inputs(scan.carry, row))
            return None, of_row.computed

        arrays = lax.scan(convert, None, scan.xs, scan.length)[1]
        store.computed.update(arrays)
    else:
        # Named after the sites of the body, so that other loops' arrays aren't sliced.
        inside = {each.site for body in programs_of(program) for each in body.layers}
        arrays = {n: a for n, a in store.converted.items() if n.rpartition("/")[0] in inside}

    def step(carry: list[Any], row: tuple[list[Any], Any]) -> tuple[list[Any], list[Any]]:
        params, codes = row
        outputs = evaluate(program, ParameterCache(codes, {}), scan.inputs(carry, params))
        return scan.split(outputs)

    rows = (scan.xs, arrays)
    carry, ys = lax.scan(step, scan.carry, rows, scan.length, scan.reverse, scan.unroll)
    return [*carry, *ys]


def _bodies(layer: Layer, operands: Sequence[Any], first: Callable[[Any], Any]) -> list[_Body]:
    """Pairs the programs of a layer with what they read; `first` takes an array's first row."""
    (node,) = layer.nodes
    arguments = branch_operands(node, operands)
    if arguments is not None:
        return [(branch, [*arguments], [False] * len(arguments)) for branch in layer.programs]
    if node.primitive is prim.p.scan_p:
        scan = Scan.of(node, operands)
        rows = [first(x) for x in scan.xs]
        counts = (len(scan.consts), len(scan.carry), len(rows))
        return [(layer.programs[0], scan.inputs(scan.carry, rows), _middle(*counts))]
    loop = While.of(node, operands)
    test, body = layer.programs
    return [
        (test, loop.test_inputs(loop.carry), _middle(len(loop.test_consts), len(loop.carry))),
        (body, loop.inputs(loop.carry), _middle(len(loop.consts), len(loop.carry))),
    ]


def _middle(before: int, carried: int, after: int = 0) -> list[bool]:
    return [False] * before + [True] * carried + [False] * after
