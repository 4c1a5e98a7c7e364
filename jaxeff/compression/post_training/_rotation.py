"""Rotations of residual streams and of what layers read: `rotate`.

Values along whose last axis nothing but sums, moves and norms without a scale happen between linear
layers, look-ups of rows and linear layers form a stream. It is turned where it is written and
turned back where it is read, in the parameters. Whether a layer commutes with a rotation is not
read off names: it is evaluated, once turned before and once after. A norm's scale doesn't commute;
it moves into the layers that read the norm, and is one afterwards.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from jaxeff.compression._quantized import is_look_up, rows_of
from jaxeff.compression.numerics import LayerQuantization, Method
from jaxeff.compression.post_training import _channels, _layerwise
from jaxeff.compression.post_training import _multiplication as multiplication
from jaxeff.compression.post_training._scaling import check_open
from jaxeff.compression.quantizers import Rotated, turned
from jaxeff.core import input_batch, single_key, validate
from jaxeff.program import Layer, Program, evaluate, plain_rule
from jaxeff.program.ir import Value

_TOLERANCE = 1e-3
"""Largest relative difference of a layer that commutes with a rotation, in float32."""
_NARROW_TOLERANCE = 0.03
"""The same in float16 and bfloat16."""
_SIZES = (1.0, 1e-3, 1e3, 1e6)
_NARROW_SIZES = (1.0, 1e-2, 1e2)
"""Sizes of the values that layers are tried on; a square of the largest is a number still."""


@dataclass(eq=False)
class Stream:
    """What makes and reads the values of a stream.

    Attributes:
        size: Entries along the last axis.
        written: Linear layers whose outputs are its entries.
        biases: Parameters added to its entries.
        tables: Parameters whose last axis are its entries.
        read: Linear layers whose inputs are its entries.
        norms: Norms whose scale moves into the layers that read them.
        free: Whether nothing else reads or makes a value.
    """

    size: int
    written: list[multiplication.Multiplication] = field(default_factory=list)
    biases: list[multiplication.Origin] = field(default_factory=list)
    tables: list[multiplication.Origin] = field(default_factory=list)
    read: list[multiplication.Multiplication] = field(default_factory=list)
    norms: list[_channels.Gain] = field(default_factory=list)
    free: bool = True

    def join(self, other: "Stream") -> None:
        """Takes over all of another stream."""
        for mine, theirs in (
            (self.written, other.written), (self.biases, other.biases), (self.read, other.read),
            (self.tables, other.tables), (self.norms, other.norms),
        ):  # fmt: skip
            mine.extend(theirs)  # type: ignore[arg-type]
        self.free = self.free and other.free


def streams(
    program: Program,
    leaves: Sequence[Any],
    linear: Mapping[str, multiplication.Multiplication],
    seed: int,
) -> list[Stream]:
    """Finds the streams that can be turned.

    Parameters are looked at, data isn't; the signs of the rotation are drawn by `seed`.
    """
    reader = _Reader(program, leaves, linear, seed)
    for layer in program.layers:
        reader.visit(layer)
    for v in program.outputs:
        if isinstance(v, Value):
            reader.pin(v)
    by_identity = {id(s): s for s in map(reader.stream, list(reader.of)) if s.free and s.read}
    return list(by_identity.values())


class _Reader:
    """Streams of the values of a program, as they are found layer by layer."""

    def __init__(
        self,
        program: Program,
        leaves: Sequence[Any],
        linear: Mapping[str, multiplication.Multiplication],
        seed: int,
    ):
        self.program, self.linear, self.makers = program, linear, multiplication.producers(program)
        self.seed = seed
        self.of: dict[Value, Value] = {}
        self.roots: dict[Value, Stream] = {}
        # A bias after the scale, as a layer norm has, would have to be turned with it.
        single = [g for g in _channels.gains(program, leaves, linear) if len(g.vectors) == 1]
        self.gains = {gain.layer: gain for gain in single}

    def stream(self, value: Value) -> Stream:
        """Returns the stream that a value belongs to."""
        return self.roots[self._root(value)]

    def pin(self, value: Value) -> None:
        """Says that something reads or makes a value that can't be turned."""
        if value.aval.shape:
            self.stream(value).free = False

    def unite(self, one: Value, other: Value) -> None:
        """Makes two values one stream."""
        a, b = self._root(one), self._root(other)
        # Joined by reference: values that were found before belong to the joint stream.
        if a is not b:
            self.roots[a].join(self.roots.pop(b))
            self.of[b] = a

    def visit(self, layer: Layer) -> None:
        """Adds what a layer does."""
        if layer.site in self.linear:
            self._product(layer, self.linear[layer.site])
        elif is_look_up(layer) and self._looks_up(layer):
            return
        elif not self._passes(layer):
            for v in [*layer.inputs, *layer.outputs]:
                if v.is_data:
                    self.pin(v)

    def _root(self, value: Value) -> Value:
        if value not in self.of:
            self.of[value] = value
            self.roots[value] = Stream(int(value.aval.shape[-1]) if value.aval.shape else 1)
        while self.of[value] is not value:
            value = self.of[value]
        return value

    def _product(self, layer: Layer, at: multiplication.Multiplication) -> None:
        contraction = at.contraction
        operand = at.node.inputs[1 - contraction.side]
        is_matrix = not contraction.is_convolution and contraction.groups == 1
        (out,) = layer.outputs[:1]
        last = len(operand.aval.shape) - 1
        turns = is_matrix and self._has_weight_to_itself(at)
        # Whatever else a layer reads beside its product's operand isn't followed.
        for v in layer.inputs:
            if v.is_data and v is not operand:
                self.pin(v)
        if (
            turns
            and operand in layer.inputs
            and contraction.summed(1 - contraction.side) == (last,)
        ):
            self.stream(operand).read.append(at)
        elif isinstance(operand, Value) and operand in layer.inputs:
            self.pin(operand)
        bias = self._bias(layer)
        channels = _channels.output_channels(at) if turns and bias is not None else None
        size = out.aval.shape[-1] if out.aval.shape else 0
        if channels is not None and (channels == np.arange(size)).all():
            self.stream(out).written.append(at)
            self.stream(out).biases.extend(bias or [])
        else:
            self.pin(out)

    def _has_weight_to_itself(self, at: multiplication.Multiplication) -> bool:
        """Returns whether a weight is this layer's, but for a table that rows are taken from."""
        looked = [la.site for la in self.program.layers if is_look_up(la)]
        others = set(multiplication.users(self.program, at.origin.path)) - {at.layer.site}
        return _channels.alone(self.program, at) or others <= set(looked)

    def _bias(self, layer: Layer) -> list[multiplication.Origin] | None:
        """Returns the parameters added to a product's outputs; None where they can't be turned."""
        biases = []
        for i in layer.biases:
            bias = multiplication.origin(self.program, layer.inputs[i], self.makers, grows=True)
            if bias is None or multiplication.users(self.program, bias.path) != [layer.site]:
                return None
            if len(bias.value.aval.shape) != 1:
                return None
            biases.append(bias)
        return biases

    def _looks_up(self, layer: Layer) -> bool:
        table = multiplication.origin(self.program, layer.inputs[0], self.makers)
        (out,) = layer.outputs
        shape = layer.inputs[0].aval.shape
        if table is None or table.nodes or len(shape) != 2 or rows_of(layer) != (0,):
            return False
        # A tied head turns with its table: (T H)^T is H^T T^T.
        heads = {
            site for site in multiplication.users(self.program, table.path) if site != layer.site
        }
        if heads - {s for s, at in self.linear.items() if at.origin.leaf == table.leaf}:
            return False
        if out.aval.shape[-1] != shape[1]:
            return False
        self.stream(out).tables.append(table)
        return True

    def _passes(self, layer: Layer) -> bool:
        """Adds a layer that commutes with rotations, if it does."""
        data = [v for v in layer.inputs if v.is_data and _is_real(v)]
        if len(layer.outputs) != 1 or not layer.nodes or layer.kind == "control flow":
            return False
        (out,) = layer.outputs
        sizes = {v.aval.shape[-1] if v.aval.shape else 0 for v in (*data, out)}
        names = [node.primitive.name for node in layer.nodes]
        if not data or len(sizes) != 1 or sizes == {0}:
            return False
        # A sum of two streams is one; a product of them turns into something else.
        if len(data) == 2:
            added = names == ["add"] and len(layer.inputs) == 2
            if added and len({v.aval.shape for v in (*data, out)}) == 1:
                self.unite(data[0], out)
                self.unite(data[1], out)
                return True
            return False
        gain = self.gains.get(layer)
        weights = [i for i, v in enumerate(layer.inputs) if v.is_weight]
        if len(data) != 1 or (weights and (gain is None or len(weights) != 1)):
            return False
        # A scale commutes only where it is one, which folding makes it.
        if not _commutes(layer, layer.inputs.index(data[0]), weights, self.seed):
            return False
        self.unite(data[0], out)
        if gain is not None:
            self.stream(out).norms.append(gain)
        return True


def _commutes(layer: Layer, index: int, ones: Sequence[int], seed: int) -> bool:
    """Tells whether a layer gives turned results for turned values, with scales of one."""
    random = np.random.default_rng(0)
    values: list[Any] = [np.zeros(v.aval.shape, v.aval.dtype) for v in layer.inputs]
    for i in ones:
        values[i] = values[i] + np.ones((), values[i].dtype)
    # Normal values of both signs: what isn't linear or radial shows on them.
    x = random.normal(size=values[index].shape)
    # The rotation itself: of an odd number of entries it turns signs alone, by some seeds none.
    turn = rotation(x.shape[-1], seed)

    @jax.jit
    def result(x: Array) -> Array:
        inputs = list(values)
        inputs[index] = x.astype(values[index].dtype)
        output: Array = layer.fn(*inputs)[0]
        return output.astype(jnp.float32)

    bits = jnp.finfo(values[index].dtype).bits
    tolerance = _TOLERANCE if bits >= 32 else _NARROW_TOLERANCE
    # What clips large values, or stops small ones, does so at some size.
    for size in _SIZES if bits >= 32 else _NARROW_SIZES:
        of_size = jnp.asarray(x * size, jnp.float32)
        before, after = result(turn(of_size)), turn(result(of_size))
        if not jnp.abs(before - after).max() <= tolerance * jnp.abs(after).max():
            return False
    return True


def rotation(size: int, seed: int, back: bool = False) -> Callable[[Any], Array]:
    """Returns the rotation of an axis of a size, its last one."""
    return lambda x: turned(jnp.asarray(x, jnp.float32), size & -size, seed, back)


def _is_real(value: Value) -> bool:
    return bool(jnp.issubdtype(value.aval.dtype, jnp.floating))


@validate(key=single_key, batch=input_batch)
def rotate(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Method | None],
    *,
    fold: bool = True,
) -> _layerwise.PostTrained:
    """Turns what quantized layers read by a random Hadamard matrix.

    A residual stream whose norms have no other part than a scale commutes with a rotation: what
    writes it is turned, and what reads it turned back, once and for all. Other
    layers turn what they read in the call, by `Rotated` methods for weights and activations.

    ```python
    import jax
    from jaxeff.compression import Int, quantized, rotate
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    _, turned, spec = rotate(jax.random.key(0), f, params, x, {"fc2": Int(4)})
    logits = quantized(f, spec)(turned, x)               # f(turned, x) is still f(params, x)
    ```

    Sharp edges:
        Parameters are turned and not rounded: `gptq` or `quantized` round them; `gptq` takes inputs
        one by one, which `Rotated` mixes, so it is for what folds.
        `Rotated` is for `quantized`: `integer` has no kernel that turns its input.
        The matrix acts on blocks of the largest power of two that divides an axis: of 576 channels
        blocks of 64 are mixed.
        A tied table stays where a norm with a scale comes before the head, for the scale would have
        to go into the table: `jaxeff.adapters.untied` gives the head a weight of its own. Nor does
        a layer norm with a mean, or a bias, commute.

    Args:
        key: Random key of the signs of the matrix.
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them; their shapes count, not their values.
        spec: Quantizers by site, as for `quantized`, with open ranges.
        fold: Whether streams are turned in the parameters, where that is possible.

    Returns:
        `f`, parameters with the same outputs, and the spec to quantize them by.

    Raises:
        ValueError: The batch is empty or not finite, nothing is quantized in a linear layer with a
            weight of its own, or a range is fixed already.

    References:
        Ashkboos et al., "QuaRot", arXiv:2404.00456, sections 4.1 and 4.2.
    """
    program, settings, linear, _, leaves = _layerwise.read_model("rotate", f, params, batch, spec)
    # `Rotated` holds a number, which is static: a program is compiled for a matrix.
    seed = int(jax.random.randint(key, (), 0, 2**31 - 1))
    ours = [site for site in settings if site in linear]
    if not ours:
        raise ValueError(
            "rotate found nothing to turn: no setting of the spec quantizes a linear layer with a "
            "weight of its own."
        )
    _check_settings(program, settings, leaves)
    folded: set[str] = set()
    # Layers that aren't quantized turn with the others: the function stays the same.
    for stream in streams(program, leaves, linear, seed) if fold else ():
        sites = {at.layer.site for at in stream.read}
        if sites.intersection(ours):
            _turn(stream, leaves, seed)
            folded |= sites
    kept = dict(settings)
    for site in ours:
        if site not in folded and not linear[site].contraction.is_convolution:
            kept[site] = _in_the_call(settings[site], seed)
    return _layerwise.PostTrained(
        f, _layerwise.with_leaves(params, leaves), _layerwise.started_spec(program, kept, {})
    )


def _turn(stream: Stream, leaves: list[Any], seed: int) -> None:
    """Turns a stream in the parameters."""
    turn = rotation(stream.size, seed)
    # Scales go first: after that all norms commute.
    for gain in stream.norms:
        (vector,) = gain.vectors
        gain.divide(leaves, np.asarray(leaves[vector.leaf], np.float64))
    shared = {table.leaf for table in stream.tables}
    for leaf in shared | {bias.leaf for bias in stream.biases}:
        leaves[leaf] = turn(leaves[leaf]).astype(leaves[leaf].dtype)
    for at in stream.written:
        _channels.replace_weights(
            at, leaves, np.asarray(turn(_channels.weights_of(at, leaves)), np.float64)
        )
    for at in stream.read:
        # Weights are matrices from inputs to outputs, and inputs are to be turned.
        # The head of a tied table is turned with it.
        if at.origin.leaf not in shared:
            w = np.swapaxes(_channels.weights_of(at, leaves), 1, 2)
            _channels.replace_weights(
                at, leaves, np.swapaxes(np.asarray(turn(w), np.float64), 1, 2)
            )


def _in_the_call(setting: LayerQuantization, seed: int) -> LayerQuantization:
    methods = setting.activations
    if isinstance(methods, tuple):
        (methods,) = methods
    return replace(
        setting,
        weights=None if setting.weights is None else Rotated(setting.weights, seed=seed),
        activations=None if methods is None else Rotated(methods, seed=seed),
    )


def _check_settings(
    program: Program, settings: Mapping[str, LayerQuantization], leaves: Sequence[Any]
) -> None:
    def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
        if layer.site in settings:
            check_open("rotate", layer, settings[layer.site], values)
        return plain_rule(layer, key, *values)

    jax.eval_shape(lambda leaves: evaluate(program, rule, None, leaves), list(leaves))
