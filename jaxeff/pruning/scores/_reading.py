"""Channels on a batch: the products that read them, and their activations.

Host code, one program for the whole network: values are concrete. Layers in loops aren't read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxeff.compression.post_training import Multiplication, arguments, multiplications
from jaxeff.program import Layer, evaluate, plain_rule, trace
from jaxeff.pruning.dependencies import Channels, Dimension, dimensions, membership, read_channels


class LinearStatistics(NamedTuple):
    """A linear layer on a batch.

    Attributes:
        at: The layer.
        weights: The matrices, `[groups, inputs, outputs]` in float64.
        moment: The mean of x x^T over rows, `[groups, inputs, inputs]` in float64.
        channels: The groups of the network at this batch.
    """

    at: Multiplication
    weights: np.ndarray
    moment: np.ndarray
    channels: Channels

    def channel_of(self, dimension: Dimension) -> np.ndarray:
        """Returns which channel of a dimension each input reads, or -1: `[groups, inputs]`."""
        axes = self.channels.labels.of(self.at.layer.inputs[self.at.index])
        whole = np.full(self.at.contraction.weight_shape, -1)
        for i, axis in enumerate(axes):
            if i in self.summed:
                shape = [-1 if j == i else 1 for j in range(len(axes))]
                whole = np.maximum(whole, membership(axis, dimension).reshape(shape))
        found: np.ndarray = self.at.contraction.matrix(whole)[:, :, 0]
        return found

    @property
    def summed(self) -> frozenset[int]:
        """The axes of the weight that are summed over."""
        # One number per input, in the place of the weight: what varies along an axis is an input.
        rows = np.arange(self.at.contraction.matrix_shape[1])[None, :, None]
        marks = self.at.contraction.weight(np.broadcast_to(rows, self.at.contraction.matrix_shape))
        varies = [np.ptp(marks, axis=i).any() for i in range(marks.ndim)]
        return frozenset(np.flatnonzero(varies).tolist())

    @property
    def dimensions(self) -> set[Dimension]:
        """The dimensions that it reads."""
        axes = self.channels.labels.of(self.at.layer.inputs[self.at.index])
        return {d for i in self.summed for d in dimensions(axes[i])}


def products(f: Callable[..., Any], params: Any, batch: Any, where: str) -> list[LinearStatistics]:
    """Returns the linear layers of a network with the second moments of what they read.

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them.
        where: The name of the caller in error messages.

    Raises:
        ValueError: The batch is empty or not finite.
    """
    args = arguments(where, batch)
    program = trace(f, params, *args)
    channels = read_channels(program)
    found, _ = multiplications(program)

    def seen(layer: Layer, values: Sequence[Any], outputs: Sequence[Any]) -> Any:
        del outputs
        at = found.get(layer.site)
        return None if at is None else (values[at.index], at.reads(values))

    read = _evaluated(channels, (params, *args), seen)
    result = []
    for site, (w, x) in read.items():
        matrix = found[site].contraction.matrix(np.asarray(w)).astype(np.float64)
        # All that a score needs of the batch is the second moment: memory grows with inputs, not
        # rows.
        moment = np.asarray(found[site].moment(x, x), np.float64)
        result.append(LinearStatistics(found[site], matrix, moment, channels))
    return result


def activations(
    f: Callable[..., Any], params: Any, batch: Any, where: str
) -> dict[str, np.ndarray]:
    """Returns the activations of channels on a batch, where linear layers make them.

    Returns:
        By group, `[channels, values]` in float64: of all examples, places and layers that make the
        group. Groups that are made in loops alone are left out.

    Raises:
        ValueError: As for `products`.
    """
    args = arguments(where, batch)
    program = trace(f, params, *args)
    channels = read_channels(program)

    def seen(layer: Layer, values: Sequence[Any], outputs: Sequence[Any]) -> Any:
        del values
        return outputs[0] if layer.kind == "linear" and layer.site else None

    read = _evaluated(channels, (params, *args), seen)
    layers = {layer.site: layer for layer in program.layers}
    found = {}
    for group, dimension in zip(channels, channels.dimensions, strict=True):
        parts = []
        for site in group.sites:
            axes = channels.labels.of(layers[site].outputs[0]) if site in read else ()
            for i, axis in enumerate(axes):
                index = membership(axis, dimension)
                if (index >= 0).any():
                    # Channels in order, every one with equally many indices (as in `vectors`); the
                    # first sorted are -1, no channel of this group.
                    order = np.argsort(index, kind="stable")[(index < 0).sum() :]
                    values = np.moveaxis(np.asarray(read[site], np.float64), i, 0)[order]
                    parts.append(values.reshape(group.size, -1))
        if parts:
            found[group.name] = np.concatenate(parts, axis=1)
    return found


def _evaluated(
    channels: Channels,
    args: tuple[Any, ...],
    seen: Callable[[Layer, Sequence[Any], Sequence[Any]], Any],
) -> dict[str, Any]:
    """Returns what is seen of the layers outside loops, by site, in one compiled program."""
    program = channels.program
    outside = set(program.layers)

    @jax.jit
    def run(leaves: list[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def rule(layer: Layer, key: Any, *values: Any) -> Sequence[Any]:
            outputs = plain_rule(layer, key, *values)
            of_layer = seen(layer, values, outputs) if layer in outside else None
            if of_layer is not None:
                found[layer.site] = of_layer
            return outputs

        evaluate(program, rule, None, leaves)
        return found

    read: dict[str, Any] = run([jnp.asarray(leaf) for leaf in jax.tree.leaves(args)])
    return read


def readers(
    found: Sequence[LinearStatistics],
) -> Iterator[tuple[str, Dimension, list[LinearStatistics]]]:
    """Yields the groups of a network, each with the products that read it."""
    if not found:
        return
    channels = found[0].channels
    reads = [product.dimensions for product in found]
    for group, dimension in zip(channels, channels.dimensions, strict=True):
        yield (
            group.name,
            dimension,
            [product for product, ds in zip(found, reads, strict=True) if dimension in ds],
        )


__all__ = ["LinearStatistics", "activations", "products", "readers"]
