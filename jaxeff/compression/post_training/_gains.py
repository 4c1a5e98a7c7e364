"""Parameters whose entries multiply the channels that layers read, as a norm's scale and bias do.

Which parameters these are is not read off names: a layer is evaluated with its vectors of
parameters multiplied by small whole numbers, channel by channel. Where its result is multiplied by
just these numbers, dividing the vectors by a scale divides what the next layers read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxeff.compression.post_training._channels import (
    alone,
    labels_of,
    labels_of_inputs,
    readers_of,
    zeros_like,
)
from jaxeff.compression.post_training._equalization import replace_weights, weights_of
from jaxeff.compression.post_training._multiplication import Multiplication
from jaxeff.compression.post_training._origins import (
    Origin,
    origin,
    parameter_values,
    producers,
    users,
)
from jaxeff.program import Layer, Program
from jaxeff.program.ir import Value


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
    vectors: tuple[Origin, ...]
    readers: tuple[tuple[Multiplication, Int[np.ndarray, "groups inputs"]], ...]

    def divide(self, leaves: list[Any], scale: Float[np.ndarray, " channels"]) -> None:
        """Divides the vectors by a scale, and multiplies it into the weights of the readers."""
        for vector in self.vectors:
            leaf = np.asarray(leaves[vector.leaf])
            leaves[vector.leaf] = jnp.asarray((leaf / scale).astype(leaf.dtype))
        for reader, channels in self.readers:
            w = weights_of(reader, leaves) * scale[channels][:, :, None]
            replace_weights(reader, leaves, w)


def gains(
    program: Program, leaves: Sequence[Any], found: Mapping[str, Multiplication]
) -> list[Gain]:
    """Finds the layers whose vectors of parameters multiply what linear layers read.

    Args:
        program: Result of `trace`.
        leaves: The flattened arguments; parameters are looked at, data isn't.
        found: The linear layers, by site.
    """
    readers, results = readers_of(program)
    env = parameter_values(program, leaves)
    made: list[Gain] = []
    for layer in program.layers:
        if layer.site in found or len(layer.outputs) != 1 or layer.kind == "control flow":
            continue
        # All readers take part: one that couldn't would see divided channels.
        reading = readers.get(layer.outputs[0], [])
        able = all(r.site in found and alone(program, found[r.site]) for r in reading)
        if not layer.nodes or not reading or not able or layer.outputs[0] in results:
            continue
        gain = _gain(program, layer, [found[r.site] for r in reading], leaves, env)
        if gain is not None:
            made.append(gain)
    return made


def _gain(
    program: Program,
    layer: Layer,
    reading: Sequence[Multiplication],
    leaves: Sequence[Any],
    env: Mapping[Value, Any],
) -> Gain | None:
    makers = producers(program)
    vectors = {
        i: at
        for i, v in enumerate(layer.inputs)
        if v.is_weight and (at := origin(program, v, makers, grows=True)) is not None
    }
    sizes = {jnp.shape(leaves[at.leaf]) for at in vectors.values()}
    shared = any(users(program, at.path) != [layer.site] for at in vectors.values())
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
        made: Array = layer.fn(*inputs)[0]
        return made

    channels = []
    for reader in reading:

        @jax.jit
        def read(scales: Array, reader: Multiplication = reader) -> Array:
            known = {layer.outputs[0]: result(scales)}
            return reader.reads([known.get(v, zeros_like(v)) for v in reader.layer.inputs])

        # Entry by entry, whose number multiplies it: none, or two, and it is no gain.
        labels = labels_of(read, count)
        if labels is None or (labels < 0).any():
            return None
        own = labels_of_inputs(reader, labels)
        if own is None:
            return None
        channels.append(own)
    return Gain(layer, tuple(vectors.values()), tuple(zip(reading, channels, strict=True)))
