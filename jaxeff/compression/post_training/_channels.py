"""Pairs of layers, and norms, whose common channels can be rescaled: `equalize`.

Between two linear layers there may be anything that keeps channels apart and is positively
homogeneous, g(s x) = s g(x) for s > 0: a ReLU, a leaky one, pooling, a mean, a reshape. Neither is
read off names. The functions between are evaluated at values of all sizes and both signs, and again
with channels multiplied by small whole numbers, the digits of the channel's number; where every
ratio is a whole number, and the same wherever an input of the second layer stands, the digits give
the channel. A GELU, a sigmoid, a clipped ReLU, a shift or a softmax gives ratios that aren't whole,
and there is no pair.

Nor is it read off names which parameters multiply the channels that layers read, as a norm's scale
and bias do: a layer is evaluated with its vectors of parameters multiplied by small whole numbers,
channel by channel. Where its result is multiplied by just these numbers, dividing the vectors by a
scale divides what the next layers read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxeff.compression.post_training import _multiplication as multiplication
from jaxeff.compression.post_training._layerwise import PostTrained, with_leaves
from jaxeff.core import as_arguments, input_batch, spec_of, static_integer, validate
from jaxeff.program import Layer, Program, trace
from jaxeff.program.ir import Value

_BASE = 8
_DRAWS = 4
_FULL = 32
"""Bits of float32."""

Labels = Int[np.ndarray, "..."]


@dataclass(frozen=True, eq=False)
class Source:
    """A linear layer whose output channels can be scaled, for nothing else reads its parameters.

    Attributes:
        at: The layer.
        bias: The parameter added to it, if there is one.
        bias_channels: For each entry of that parameter, its channel.
        channels: For each entry of the layer's output, its channel, counted over groups.
    """

    at: multiplication.Multiplication
    bias: multiplication.Origin | None
    bias_channels: Labels | None
    channels: Labels


@dataclass(frozen=True, eq=False)
class LayerPair:
    """Two linear layers of which the second reads the first one's channels.

    Attributes:
        first: The layer that makes the channels.
        second: The layer that reads them.
        channels: For each input of the second, the channel of the first.
    """

    first: Source
    second: multiplication.Multiplication
    channels: Int[np.ndarray, "groups inputs"]


def pairs(program: Program, leaves: Sequence[Any]) -> list[LayerPair]:
    """Finds every pair of linear layers between which channels can be rescaled.

    Parameters are looked at, data isn't. Returns pairs in order of execution, whose first layer's
    result is read along one way only.
    """
    linear, _ = multiplication.multiplications(program)
    env = multiplication.parameter_values(program, leaves)
    readers, results = readers_of(program)
    layer_pairs: list[LayerPair] = []
    for at in linear.values():
        # Rescaling is only allowed where nothing else reads the channels in between.
        way = _way(at.layer, readers, results, linear, env)
        if way is None or not alone(program, at) or not alone(program, way[1]):
            continue
        first = source(program, at, leaves, env)
        channels = None if first is None else _carried(first, *way, env)
        if first is not None and channels is not None:
            layer_pairs.append(LayerPair(first, way[1], channels))
    return layer_pairs


def readers_of(program: Program) -> tuple[dict[Value, list[Layer]], set[Value]]:
    """Lists the layers that read each value, and the values that are results."""
    readers: dict[Value, list[Layer]] = {}
    for layer in program.layers:
        for v in layer.inputs:
            readers.setdefault(v, []).append(layer)
    return readers, {v for v in program.outputs if isinstance(v, Value)}


def source(
    program: Program,
    at: multiplication.Multiplication,
    leaves: Sequence[Any],
    env: Mapping[Value, Any],
) -> Source | None:
    """Describes a layer's output channels; None where its bias is shared or computed."""
    channels = output_channels(at)
    biases = at.layer.biases
    if channels is None or len(biases) > 1:
        return None
    if not biases:
        return Source(at, None, None, channels)
    bias = multiplication.origin(
        program, at.layer.inputs[biases[0]], multiplication.producers(program), grows=True
    )
    if bias is None or multiplication.users(program, bias.path) != [at.layer.site]:
        return None
    values = [env.get(v, zeros_like(v)) for v in at.layer.inputs]
    if jnp.finfo(leaves[bias.leaf].dtype).bits < _FULL:
        return Source(at, bias, _by_digits(at, bias, leaves[bias.leaf], channels), channels)
    # The mean of channel numbers over the places that a bias entry adds to is that entry's channel.
    labels = channels.astype(np.float32)
    entries = multiplication.mean_per_entry(
        at.layer, bias, biases[0], leaves[bias.leaf], values, labels
    )
    return Source(at, bias, np.rint(np.asarray(entries, np.float64)).astype(int), channels)


def _by_digits(
    at: multiplication.Multiplication, bias: multiplication.Origin, leaf: Array, channels: Labels
) -> Labels:
    """Finds the channel of each entry of a bias in narrow floats, which add no long sums up."""
    entries, weight = np.zeros(channels.shape, int), 1
    numbers = np.arange(leaf.size)
    values: list[Any] = [zeros_like(v) for v in at.layer.inputs]
    # With zeros elsewhere, an output is the entry that is added to it: its number, by digits.
    while weight == 1 or weight < leaf.size:
        digits = jnp.asarray(numbers // weight % _BASE, leaf.dtype).reshape(leaf.shape)
        values[at.layer.biases[0]] = bias.to_input(digits)
        output = np.asarray(jax.jit(at.layer.fn)(*values)[0], np.float64)
        entries += weight * np.rint(output).astype(int)
        weight *= _BASE
    labels = np.zeros(leaf.size, int)
    labels[entries.reshape(-1)] = channels.reshape(-1)
    return labels.reshape(leaf.shape)


def output_channels(at: multiplication.Multiplication) -> Labels | None:
    """Finds the channel of every entry of a layer's output, counted over groups.

    None where an entry is made of no weight, as between those of a dilated image.
    """
    groups, inputs, outputs = at.contraction.matrix_shape
    # With data of ones and columns that hold one factor, an output scales with its own channel.
    zeros = [z + 1 if v.is_data else z for v in at.layer.inputs for z in (zeros_like(v),)]

    @jax.jit
    def output(scales: Float[Array, " channels"]) -> Array:
        rows = scales.reshape(groups, 1, outputs)
        matrix = jnp.broadcast_to(rows, (groups, inputs, outputs))
        values = list(zeros)
        values[at.index] = at.contraction.weight(matrix).astype(zeros[at.index].dtype)
        result: Array = at.layer.fn(*values)[0]
        return result

    labels = labels_of(output, groups * outputs)
    return None if labels is None or (labels < 0).any() else labels


def _way(
    first: Layer,
    readers: Mapping[Value, Sequence[Layer]],
    results: set[Value],
    linear: Mapping[str, multiplication.Multiplication],
    env: Mapping[Value, Any],
) -> tuple[list[Layer], multiplication.Multiplication] | None:
    """Finds the layers between a linear layer and the next one, if that is its only reader."""
    between: list[Layer] = []
    layer = first
    while len(layer.outputs) == 1:
        (value,) = layer.outputs
        reading = readers.get(value, [])
        # Any other reader would see rescaled channels.
        if value in results or len(reading) != 1:
            return None
        (layer,) = reading
        if layer.site in linear:
            return between, linear[layer.site]
        known = all(v is value or v in env for v in layer.inputs)
        if not layer.nodes or layer.kind == "control flow" or not known:
            return None
        between.append(layer)
    return None


def _carried(
    first: Source,
    between: Sequence[Layer],
    second: multiplication.Multiplication,
    env: Mapping[Value, Any],
) -> Int[np.ndarray, "groups inputs"] | None:
    """Finds the first layer's channel behind each input of the second; None without one."""
    value = first.at.layer.outputs[0]

    def through(x: Array) -> Array:
        known = {**env, value: x}
        for layer in between:
            known[layer.outputs[0]] = layer.fn(*(known[v] for v in layer.inputs))[0]
        return second.reads([known.get(v, zeros_like(v)) for v in second.layer.inputs])

    @jax.jit
    def scaled(x: Array, scales: Array) -> Array:
        return through(x * scales[first.channels].astype(x.dtype))

    count = int(first.channels.max()) + 1
    labels: Labels | None = None
    for draw in range(_DRAWS):
        random = np.random.default_rng(draw // 2)
        # Magnitudes over six decades: a clip, a GELU's knee or a shift shows at some of them.
        x = 10.0 ** random.uniform(-3, 3, value.aval.shape)
        # What a ReLU stops with one sign, it lets through with the other.
        x = np.where((random.random(x.shape) < 0.5) == bool(draw % 2), x, -x)
        x = x.astype(value.aval.dtype)
        drawn = labels_of(partial(scaled, x), count)
        if drawn is None:
            return None
        labels = drawn if labels is None else labels
        # Every draw must give the same channels; -1 (stopped by a ReLU) agrees with anything.
        if ((drawn != labels) & (drawn >= 0) & (labels >= 0)).any():
            return None
        labels = np.maximum(labels, drawn)
    assert labels is not None
    return labels_of_inputs(second, labels)


def labels_of_inputs(
    second: multiplication.Multiplication, labels: Labels
) -> Int[np.ndarray, "groups inputs"] | None:
    """Finds the label of each input of a layer, if all rows agree; padding counts as none."""
    # First the label of each input, then a check of all rows: they agree, but for the padding.
    highest: Any = None
    rows = jax.jit(second.contraction.rows)
    marked = jnp.asarray(labels + 1, jnp.float32)
    for part, _ in second.parts(marked):
        here = np.rint(np.asarray(rows(*part))).astype(int)
        highest = here.max(1) if highest is None else np.maximum(highest, here.max(1))
    for part, _ in second.parts(marked):
        here = np.rint(np.asarray(rows(*part))).astype(int)
        if ((here != highest[:, None]) & (here != 0)).any():
            return None
    return None if (highest == 0).any() else highest - 1


def labels_of(run: Callable[[Any], Array], count: int) -> Labels | None:
    """Finds the channel that each entry of a result scales with: -1 where it is zero anyway.

    `run` computes the result from a factor of each channel. Returns None where a ratio isn't that
    of a single channel.
    """
    base = run(np.ones(count, np.float32))
    tolerance = 1e-3 if jnp.finfo(base.dtype).bits >= 32 else 0.03
    known = np.asarray(base, np.float64)
    alive = known != 0
    labels = np.zeros(known.shape, int)
    weight = 1
    while weight < count:
        # The channel's number in base 8, one digit per evaluation: log_8(count) evaluations
        # instead of one per channel. A max pooling may choose another entry of the same
        # channel, which has the same factor.
        digits = np.arange(count) // weight % _BASE
        scaled = np.asarray(run((1 + digits).astype(np.float32)), np.float64)
        ratio = np.divide(scaled, known, where=alive, out=np.ones_like(known))
        rounded = np.rint(ratio)
        # Not finite is neither, hence the form of the comparison.
        fits = (np.abs(ratio - rounded) <= tolerance * np.abs(ratio)) & (rounded >= 1)
        if not (fits & (rounded <= _BASE)).all() or (scaled[~alive] != 0).any():
            return None
        labels += (rounded.astype(int) - 1) * weight
        weight *= _BASE
    return None if (labels >= count).any() else np.where(alive, labels, -1)


def alone(program: Program, at: multiplication.Multiplication) -> bool:
    """Returns whether no other layer reads the weight."""
    return multiplication.users(program, at.origin.path) == [at.layer.site]


def zeros_like(value: Value) -> np.ndarray:
    """Makes zeros like a value."""
    return np.zeros(value.aval.shape, value.aval.dtype)


# Pairs whose scales all have logarithms below this count as equal.
_SETTLED = 1e-4


@validate(batch=input_batch, sweeps=static_integer(), spec=spec_of())
def equalize(
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: dict[str, Any] | None = None,
    *,
    sweeps: int = 50,
) -> PostTrained:
    """Equalizes the ranges of linear layers without changing the function.

    Where f(s x) = s f(x) between two linear layers, channel i of the first can be divided by s_i
    and its weights in the second multiplied by it (Nagel et al., eqs. 4 to 7). With s_i = sqrt(r1_i
    r2_i) / r2_i both ranges become sqrt(r1_i r2_i), which is best for a range per tensor (eq. 11);
    it is repeated over all pairs until nothing changes.

    ```python
    from jaxeff.compression import Int, equalize, quantized
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier()
    f, params, _ = equalize(f, params, x)
    logits = quantized(f, {"*:linear": Int(8, per="tensor")})(params, x)
    ```

    Sharp edges:
        A batch norm between two layers stands in the way: `fold_batch_norm` first.
        A result that several layers read, as before a residual sum, isn't scaled.
        Large biases aren't absorbed (section 4.1.3).

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them; their shapes count, not their values.
        spec: Quantizers by site, which are returned as they are: scales don't depend on them.
        sweeps: Largest number of rounds over all pairs.

    Returns:
        `f`, new parameters (where there are no pairs, the same) and the spec.

    Raises:
        ValueError: A weight isn't finite.

    References:
        Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction",
        arXiv:1906.04721.
    """
    args = as_arguments(batch)
    program = trace(f, params, *args)
    leaves = jax.tree.leaves((params, *args))
    layer_pairs = pairs(program, leaves)
    # Scaling one pair changes the ranges of its neighbours, so all are gone through again.
    for _ in range(sweeps):
        changes = [_equalized(pair, leaves) for pair in layer_pairs]
        if max(changes, default=0.0) < _SETTLED:
            break
    return PostTrained(f, with_leaves(params, leaves), spec or {})


def rescale(pair: LayerPair, leaves: list[Any], scale: Float[np.ndarray, " channels"]) -> None:
    """Divides the first layer's channels by a scale and multiplies it into the second's weights."""
    first, second = pair.first, pair.second
    w1, w2 = (weights_of(at, leaves) for at in (first.at, second))
    replace_weights(first.at, leaves, w1 / scale.reshape(w1.shape[0], 1, w1.shape[2]))
    replace_weights(second, leaves, w2 * scale[pair.channels][:, :, None])
    if first.bias is not None:
        bias = np.asarray(leaves[first.bias.leaf])
        new = bias.astype(np.float64) / scale[first.bias_channels]
        leaves[first.bias.leaf] = jnp.asarray(new.astype(bias.dtype))


def weights_of(
    at: multiplication.Multiplication, leaves: Sequence[Any]
) -> Float[np.ndarray, "groups inputs outputs"]:
    """Returns the weights of a layer as matrices."""
    w = np.asarray(at.origin.to_input(leaves[at.origin.leaf]))
    return np.asarray(at.contraction.matrix(w)).astype(np.float64)


def replace_weights(
    at: multiplication.Multiplication,
    leaves: list[Any],
    matrix: Float[np.ndarray, "groups inputs outputs"],
) -> None:
    """Puts matrices in the place of a layer's weights, among the flattened arguments."""
    leaf = leaves[at.origin.leaf]
    dtype = at.layer.inputs[at.index].aval.dtype
    new = jnp.asarray(np.asarray(at.contraction.weight(matrix)).astype(dtype))
    leaves[at.origin.leaf] = at.origin.to_leaf(new, leaf)


def _equalized(pair: LayerPair, leaves: list[Any]) -> float:
    """Equalizes one pair and returns how far from equal it was, as a logarithm."""
    first = np.abs(weights_of(pair.first.at, leaves)).max(1).reshape(-1)
    inputs = np.abs(weights_of(pair.second, leaves)).max(2)
    for at, x in ((pair.first.at, first), (pair.second, inputs)):
        if not np.isfinite(x).all():
            raise ValueError(f"equalize: the weight of {at.layer.site!r} isn't finite.")
    second = np.zeros_like(first)
    np.maximum.at(second, pair.channels.reshape(-1), inputs.reshape(-1))
    # A channel that is zero on one side has no range to share.
    both = (first > 0) & (second > 0)
    # Eq. 11: sqrt(r1 r2) / r2 = sqrt(r1 / r2).
    scale = np.where(both, np.sqrt(first / np.where(both, second, 1)), 1.0)
    rescale(pair, leaves, scale)
    return float(np.abs(np.log(scale)).max())


@dataclass(frozen=True, eq=False)
class Gain:
    """Vectors of parameters that a layer's result is proportional to, channel by channel.

    Attributes:
        layer: The layer.
        vectors: The parameters, of one entry a channel.
        readers: The linear layers that read the result, and for each of their inputs its channel;
            nothing else reads it.
    """

    layer: Layer
    vectors: tuple[multiplication.Origin, ...]
    readers: tuple[tuple[multiplication.Multiplication, Int[np.ndarray, "groups inputs"]], ...]

    def divide(self, leaves: list[Any], scale: Float[np.ndarray, " channels"]) -> None:
        """Divides the vectors by a scale, and multiplies it into the weights of the readers."""
        for vector in self.vectors:
            leaf = np.asarray(leaves[vector.leaf])
            leaves[vector.leaf] = jnp.asarray((leaf / scale).astype(leaf.dtype))
        for reader, channels in self.readers:
            w = weights_of(reader, leaves) * scale[channels][:, :, None]
            replace_weights(reader, leaves, w)


def gains(
    program: Program, leaves: Sequence[Any], linear: Mapping[str, multiplication.Multiplication]
) -> list[Gain]:
    """Finds the layers whose vectors of parameters multiply what linear layers read.

    Parameters are looked at, data isn't.
    """
    readers, results = readers_of(program)
    env = multiplication.parameter_values(program, leaves)
    scaled: list[Gain] = []
    for layer in program.layers:
        if layer.site in linear or len(layer.outputs) != 1 or layer.kind == "control flow":
            continue
        # All readers take part: one that couldn't would see divided channels.
        reading = readers.get(layer.outputs[0], [])
        able = all(r.site in linear and alone(program, linear[r.site]) for r in reading)
        if not layer.nodes or not reading or not able or layer.outputs[0] in results:
            continue
        gain = _gain(program, layer, [linear[r.site] for r in reading], leaves, env)
        if gain is not None:
            scaled.append(gain)
    return scaled


def _gain(
    program: Program,
    layer: Layer,
    reading: Sequence[multiplication.Multiplication],
    leaves: Sequence[Any],
    env: Mapping[Value, Any],
) -> Gain | None:
    makers = multiplication.producers(program)
    vectors = {
        i: at
        for i, v in enumerate(layer.inputs)
        if v.is_weight and (at := multiplication.origin(program, v, makers, grows=True)) is not None
    }
    sizes = {jnp.shape(leaves[at.leaf]) for at in vectors.values()}
    shared = any(multiplication.users(program, at.path) != [layer.site] for at in vectors.values())
    if shared or len(sizes) != 1 or len(*sizes) != 1:
        return None
    ((count,),) = sizes
    random = np.random.default_rng(0)
    values: list[Any] = [
        env.get(v, random.normal(size=v.aval.shape).astype(v.aval.dtype)) for v in layer.inputs
    ]
    # Their own entries may be zero, which says nothing about the others.
    entries = {i: random.uniform(0.5, 1.5, count).astype(np.float32) for i in vectors}

    def result(scales: Array) -> Array:
        inputs = list(values)
        for i, at in vectors.items():
            leaf = jnp.asarray(entries[i] * scales).astype(jnp.result_type(leaves[at.leaf]))
            inputs[i] = at.to_input(leaf)
        output: Array = layer.fn(*inputs)[0]
        return output

    channels = []
    for reader in reading:

        @jax.jit
        def read(scales: Array, reader: multiplication.Multiplication = reader) -> Array:
            known = {layer.outputs[0]: result(scales)}
            return reader.reads([known.get(v, zeros_like(v)) for v in reader.layer.inputs])

        # Entry by entry, whose number multiplies it: none, or two, and it is no gain.
        labels = labels_of(read, count)
        if labels is None or (labels < 0).any():
            return None
        labels_read = labels_of_inputs(reader, labels)
        if labels_read is None:
            return None
        channels.append(labels_read)
    return Gain(layer, tuple(vectors.values()), tuple(zip(reading, channels, strict=True)))
