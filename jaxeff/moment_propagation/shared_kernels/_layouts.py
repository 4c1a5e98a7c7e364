"""Which axis of an array is the examples', which the channels', and which are positions.

An array's layout is an `Axes` of `BATCH`, `CHANNEL` and further numbers for positions; None for an
axis of size one that is none of them. In the *canonical* layout an array is
`[batch, *positions, channels]`; an axis that is missing has size one.

A convolution or dense layer acts on the means of channels over positions. Of the result `y[p] =
sum_t w_t x[s p + t]` a gate g lets `sum_t w_t mean_p(g[p] x[s p + t])` through to the mean over
positions. So the noise of that mean is a matrix times the noise of the means of the channels, plus
what the kernel's own noise adds.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from jaxeff.core import jax_internals
from jaxeff.core import primitives as p
from jaxeff.moment_propagation.dependence import AFFINE, is_pointwise
from jaxeff.moment_propagation.rules import is_uniform
from jaxeff.program import Layer
from jaxeff.program.ir import Axes, Contraction, Node, OperationFamily, Value, axes
from jaxeff.program.ir import primitives as prim

BATCH, CHANNEL, FIRST_PLACE = 0, 1, 2

_WINDOWS = {p.reduce_window_max_p, p.reduce_window_min_p, p.reduce_window_sum_p}
_EXTREMA = {p.reduce_window_max_p, p.reduce_window_min_p, p.reduce_max_p, p.reduce_min_p}
_REDUCING = {p.reduce_sum_p, p.reduce_max_p, p.reduce_min_p}
_CONVERTING = {p.convert_element_type_p, p.copy_p, p.name_p}


def _order(layout: Axes) -> list[int]:
    """Returns the axes in canonical order, missing ones left out."""
    rank = {BATCH: 0, CHANNEL: 2}
    return sorted(range(len(layout)), key=lambda i: rank.get(layout[i], 1))  # type: ignore[arg-type]


def canonical(x: Array, layout: Axes) -> Array:
    """Brings an array to `[batch, *positions, channels]`."""
    x = jnp.transpose(x, _order(layout))
    x = x if BATCH in layout else x[None]
    return x if CHANNEL in layout else x[..., None]


def restored(x: Array, layout: Axes) -> Array:
    """Brings an array from the canonical layout back to its own."""
    x = x if CHANNEL in layout else x[..., 0]
    x = x if BATCH in layout else x[0]
    order = _order(layout)
    return jnp.transpose(x, sorted(range(len(order)), key=order.__getitem__))


def positions(shape: Sequence[int], layout: Axes) -> int:
    """Returns the number of positions of an array."""
    sizes = zip(shape, layout, strict=True)
    return math.prod(n for n, a in sizes if a not in (BATCH, CHANNEL))


def follow(
    nodes: Sequence[Node],
    start: Mapping[Value, Axes],
    alike: Callable[[Axes, Axes], None] = lambda one, other: None,
) -> dict[Value, Axes] | None:
    """Follows layouts through pointwise functions, moves and poolings of positions.

    Where positions of two values meet, their numbers may differ, and are the first one's behind;
    `alike` is called with the two layouts. Returns the layouts of `start` and of all values that
    are made of them; None where an equation is of another kind, or combines values with examples or
    channels along different axes.
    """
    known = dict(start)
    for node in nodes:
        layouts = dict.fromkeys(
            known[a] for a in node.inputs if isinstance(a, Value) and a in known
        )
        if not layouts:
            continue
        first, *others = layouts
        if len(node.outputs) != 1 or any(roles(other) != roles(first) for other in others):
            return None
        for other in others:
            alike(first, other)
        after = _after(node, first)
        if after is None:
            return None
        known[node.outputs[0]] = after
    return known


def roles(layout: Axes) -> list[int | None]:
    """Returns which axes are the examples', the channels', positions, or none of them."""
    return [a if a in (BATCH, CHANNEL, None) else FIRST_PLACE for a in layout]


def pooled(nodes: Sequence[Node], start: Mapping[Value, Axes]) -> int:
    """Returns how many positions equations combine into one, along paths from some values."""
    known, count = set(start), 1
    for node in nodes:
        if known.isdisjoint(node.values):
            continue
        known.update(node.outputs)
        if node.primitive in _WINDOWS:
            count *= math.prod(node.params["window_dimensions"])
        elif node.primitive in _REDUCING:
            shape = node.inputs[0].aval.shape
            count *= math.prod(shape[i] for i in node.params["axes"])
    return count


def takes_extremum(nodes: Sequence[Node]) -> bool:
    """Returns whether equations hold a maximum or minimum over positions."""
    return any(node.primitive in _EXTREMA for node in nodes)


def is_sum(nodes: Sequence[Node], value: Value) -> bool:
    """Returns whether equations make sums of a value's entries, times what isn't made of it."""
    sums = {p.reduce_sum_p, p.reduce_window_sum_p}
    known = {value}
    for node in nodes:
        read = known.intersection(node.values)
        if read:
            known.update(node.outputs)
            several = sum(a in known for a in node.inputs if isinstance(a, Value)) > 1
            if several or node.primitive not in prim.MOVES | _CONVERTING | AFFINE | sums:
                return False
    return True


def only_moves(nodes: Sequence[Node], start: Mapping[Value, Axes]) -> bool:
    """Returns whether what is made of some values is these values, elsewhere or converted."""
    known = set(start)
    for node in nodes:
        if known.isdisjoint(node.values):
            continue
        known.update(node.outputs)
        if node.primitive not in prim.MOVES | _CONVERTING:
            return False
    return True


def depends(nodes: Sequence[Node], random: Collection[Value], value: Any) -> bool:
    """Returns whether a value is random, or made of random ones by nodes."""
    known = set(random)
    for node in nodes:
        if not known.isdisjoint(node.values):
            known.update(node.outputs)
    return value in known


def keeps_entries(layer: Layer, value: Value) -> bool:
    """Returns whether each entry of a layer's one result is made of the same entry of a value."""
    known, result = {value}, layer.outputs[0]
    for node in layer.nodes:
        if known.isdisjoint(node.values):
            continue
        if node.primitive in prim.MOVES:
            return False
        known.update(node.outputs)
    return result.aval.shape == value.aval.shape


def _after(node: Node, layout: Axes) -> Axes | None:
    """Returns the layout of an equation's result, given that of the operands that are followed."""
    shape, out = tuple(node.inputs[0].aval.shape), tuple(node.outputs[0].aval.shape)
    of = node.signature
    if node.primitive in prim.ELEMENTWISE | prim.IN_PLACE or is_pointwise(node.eqn):
        return layout if len(out) == len(layout) else None
    if node.primitive in _WINDOWS:
        windows = zip(layout, of.operands[0].along[0] or (), strict=True)
        crossed = any(a in (BATCH, CHANNEL) and one.window is not None for a, one in windows)
        return None if crossed else layout
    if of.family is not OperationFamily.MOVE and node.primitive not in _REDUCING:
        return None
    after = axes.followed(of, layout)
    if after is None:
        return None
    repeats = any(a is None and n != 1 for a, n in zip(after, out, strict=True))
    kept = {a for a, n in zip(layout, shape, strict=True) if a in (BATCH, CHANNEL) and n != 1}
    return after if kept <= set(after) and not repeats else None


@dataclass(frozen=True)
class PositionContraction:
    """A contraction of channels that is the same at all positions, in the canonical layout.

    Attributes:
        node: The equation.
        contraction: The same, read.
    """

    node: Node
    contraction: Contraction

    @classmethod
    def of(cls, node: Node) -> PositionContraction | None:
        """Reads an equation; None where it is of no form that is known here."""
        c, q = Contraction.of(node), node.params
        if not c.is_convolution:
            # [..., in] times [in, out], or [out, in] as PyTorch has it, or that in front (Equinox).
            image, last = 1 - c.side, len(c.shapes[1 - c.side]) - 1
            dense = c.summed(image) == (last,) and len(c.shapes[c.side]) == 2
            return cls(node, c) if dense and not c.batch(0) else None
        return cls(node, c) if q["batch_group_count"] == 1 else None

    @property
    def layouts(self) -> tuple[Axes, Axes] | None:
        """The layouts of a convolution's image and result; None for a dense layer."""
        if not self.contraction.is_convolution:
            return None
        image, _, result = self.contraction.layouts
        return _layout(image), _layout(result)

    @property
    def operands(self) -> tuple[Any, Any]:
        """The image and the kernel."""
        return self.node.inputs[1 - self.contraction.side], self.node.inputs[self.contraction.side]

    def of_product(self, positions: Axes) -> Axes:
        """Returns the layout of a dense layer's product, of positions' axes."""
        return (*positions, CHANNEL) if self.contraction.side else (CHANNEL, *positions)

    @property
    def groups(self) -> int:
        """The number of groups of channels."""
        return self.contraction.groups if self.contraction.is_convolution else 1

    @property
    def is_depthwise(self) -> bool:
        """Whether every channel of the result is made of one channel of its own."""
        shape = self.contraction.shapes[1]
        if not self.contraction.is_convolution:
            return False
        out, inputs, *_ = self.contraction.layouts[1]
        return shape[inputs] == 1 and shape[out] == self.groups

    def kernel(self, w: Array) -> Array:
        """Brings a kernel to `[*taps, in, out]`."""
        if not self.contraction.is_convolution:
            return w if self.contraction.summed(self.contraction.side) == (0,) else w.T
        out, inputs, *taps = self.contraction.layouts[1]
        return lax.transpose(w, (*taps, inputs, out))

    def apply(self, x: Array, kernel: Array) -> Array:
        """Computes the contraction of canonical operands."""
        q, last = dict(self.node.params), x.ndim - 1
        if not self.contraction.is_convolution:
            q["dimension_numbers"] = (((last,), (0,)), ((), ()))
            q["out_sharding"] = None
            return p.dot_general_p.bind(x, kernel, **q)
        image = (0, last, *range(1, last))
        numbers = lax.ConvDimensionNumbers(image, (last, last - 1, *range(last - 1)), image)
        return p.conv_general_dilated_p.bind(x, kernel, **{**q, "dimension_numbers": numbers})

    def by_tap(self, kernel: Array, sizes: tuple[int, ...]) -> Array:
        """Returns the share of the result's positions at which each tap reads one of the image's.

        Args:
            kernel: The kernel, whose dtype the shares have.
            sizes: The image's numbers of positions by axis.

        Returns:
            `[1, taps, 1, 1, 1]`: the same for all examples.
        """
        shares = np.ones(1)
        for reads in self._reads(sizes):
            shares = np.outer(shares, reads).ravel()
        return jnp.asarray(shares.reshape(1, -1, 1, 1, 1), kernel.dtype)

    def _reads(self, sizes: tuple[int, ...]) -> list[Any]:
        """Computes the shares of `by_tap`, axis by axis."""
        q, c = self.node.params, self.contraction
        if not c.is_convolution:
            return []
        shares = []
        for axis, size in enumerate(sizes):
            taps = c.shapes[1][c.window(1)[axis]]
            results = c.shapes[2][c.window(2)[axis]]
            stride, apart = q["window_strides"][axis], q["rhs_dilation"][axis]
            first = np.arange(results) * stride - q["padding"][axis][0]
            read = first + apart * np.arange(taps)[:, None]
            # A transposed convolution reads zeros between the entries of its image.
            shares.append(np.isin(read, q["lhs_dilation"][axis] * np.arange(size)).mean(1))
        return shares

    def by_group(self, kernel: Array) -> Array:
        """Brings a kernel `[*taps, in, out]` to `[taps, in, groups, out of a group]`."""
        return kernel.reshape(-1, kernel.shape[-2], self.groups, kernel.shape[-1] // self.groups)

    def slopes(self, kernel: Array, read: Array) -> Array:
        """Computes the matrix that acts on the channels' means.

        Args:
            kernel: `[*taps, in, out]`.
            read: What each tap reads on average, as `by_tap` or `let_through` returns it.

        Returns:
            `[batch, in, out]`; its diagonal `[batch, channels]` if it is depthwise.
        """
        by_group = self.by_group(kernel)
        return self.joined(
            (by_group * read).sum(1) if len(read) == 1 else over_taps(by_group * read)
        )

    def joined(self, blocks: Array) -> Array:
        """Puts matrices of groups, `[batch, in, groups, out]`, into one, as `slopes` returns it."""
        batch, inputs, groups, outputs = blocks.shape
        if self.is_depthwise:
            return blocks.reshape(batch, groups)
        if groups == 1:
            return blocks.reshape(batch, inputs, outputs)
        unit = jnp.eye(groups, dtype=blocks.dtype)
        full = jnp.einsum("bigo,gh->bgiho", blocks, unit)
        return full.reshape(batch, groups * inputs, groups * outputs)

    def apart(self, matrix: Array) -> Array:
        """Takes the matrices of groups out of one, `[batch, in, out]`: `joined` turned round."""
        batch, inputs, outputs = matrix.shape
        if self.groups == 1:
            return matrix[:, :, None]
        if self.is_depthwise:
            return jnp.einsum("bcc->bc", matrix)[:, None, :, None]
        shape = batch, self.groups, inputs // self.groups, self.groups, outputs // self.groups
        return jnp.einsum("bgigo->bigo", matrix.reshape(shape))

    @functools.cached_property
    def taps(self) -> Taps:
        """What its kernel reads at each position of its result."""
        c, q = self.contraction, self.node.params
        if not c.is_convolution:
            return Taps()
        sizes, results = (tuple(c.shapes[k][axis] for axis in c.window(k)) for k in (1, 2))
        return Taps(
            sizes, results, tuple(q["window_strides"]), tuple(q["padding"]),
            tuple(q["lhs_dilation"]), tuple(q["rhs_dilation"]), self.groups, self.is_depthwise,
        )  # fmt: skip


class Taps(NamedTuple):
    """What a kernel reads of an image, `[batch, *positions, channels]`, at each of its positions.

    Attributes:
        sizes: The number of taps by axis; none for a dense layer, which reads its own position.
        results: The number of the result's positions by axis.
        strides: The steps of the result's positions.
        padding: The zeros before and behind the image, by axis.
        spread: The steps of the image's entries, between which are zeros.
        apart: The steps of taps.
        groups: The number of groups of channels.
        is_depthwise: Whether every channel of the result is made of one channel of its own.
    """

    sizes: tuple[int, ...] = ()
    results: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    spread: tuple[int, ...] = ()
    apart: tuple[int, ...] = ()
    groups: int = 1
    is_depthwise: bool = False

    def windows(self, x: Array) -> Windows:
        """Reads what each tap reads at each of the result's positions.

        Args:
            x: `[batch, *positions, channels]`.

        Returns:
            `[batch, positions, taps, groups, channels of a group]`; of a depthwise kernel an array
            of the result's shape for each tap, which is no copy.
        """
        taps = [x]
        if not self._reads_its_own_position:
            around = [(*pad, n - 1) for pad, n in zip(self.padding, self.spread, strict=True)]
            taps = [lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *around, (0, 0, 0)])]
            for axis, size in enumerate(self.sizes):
                stride, apart = self.strides[axis], self.apart[axis]
                end = (self.results[axis] - 1) * stride + 1
                taps = [
                    lax.slice_in_dim(each, i, i + end, stride, axis + 1)
                    for each in taps
                    for i in range(0, size * apart, apart)
                ]
                taps = taps if self.is_depthwise else [jnp.stack(taps, -2)]
        if self.is_depthwise:
            return tuple(taps)
        places = math.prod(self.results) if self.sizes else math.prod(x.shape[1:-1])
        count = math.prod(self.sizes)
        return taps[0].reshape(len(x), places, count, self.groups, x.shape[-1] // self.groups)

    @property
    def _reads_its_own_position(self) -> bool:
        ones = (1,) * len(self.sizes)
        unmoved = self.sizes == self.strides == self.spread == ones
        return unmoved and not any(map(any, self.padding))

    def averages(self, windows: Windows, gate: Array) -> Array:
        """Averages what each tap reads, weighted by how much of each result goes on.

        Args:
            windows: What `windows` returns.
            gate: `[batch, *positions, out]`.

        Returns:
            `[batch, taps, channels of a group, groups, out of a group]`.
        """
        if isinstance(windows, tuple):
            axes = tuple(range(1, gate.ndim - 1))
            averages = jnp.stack([(tap * gate).mean(axes) for tap in windows], 1)
            return averages[:, :, None, :, None]
        batch, places, taps, _, inputs = windows.shape
        gates = gate.reshape(batch, places, self.groups, -1)
        if self.groups > 1:
            return jnp.einsum("bptgi,bpgo->btigo", windows, gates) * (1 / places)
        # A batch of plain matrices, which compilers have fast code for.
        rows, columns = windows.reshape(batch, places, -1), gates[:, :, 0]
        result = jnp.einsum("bpk,bpo->bko", rows, columns) * (1 / places)
        return result.reshape(batch, taps, inputs, 1, -1)

    def products(self, windows: Windows, kernels: Array) -> Array:
        """Contracts windows with a kernel for each example, as `averages` returns them.

        Returns:
            `[batch, positions, out]`; of a depthwise kernel `[batch, *positions, out]`.
        """
        if isinstance(windows, tuple):
            ones = (1,) * (windows[0].ndim - 2)
            of_tap = kernels.reshape(*kernels.shape[:2], *ones, -1)
            return functools.reduce(lax.add, [tap * of_tap[:, i] for i, tap in enumerate(windows)])
        batch, places = windows.shape[:2]
        if self.groups > 1:
            product = jnp.einsum("bptgi,btigo->bpgo", windows, kernels)
            return product.reshape(batch, places, -1)
        rows = windows.reshape(batch, places, -1)
        return rows @ kernels.reshape(batch, rows.shape[-1], -1)

    def let_through(self, image: Array, gate: Array) -> Array:
        """Averages what each tap reads of an image, as `averages` does of its windows."""
        return self._operator("window_averages", _averages_of(self), image, gate)

    def apply(self, image: Array, kernels: Array, like: Array) -> Array:
        """Contracts an image with a kernel for each example, to an array of another's shape."""
        product = self._operator("window_products", _products_of(self), image, kernels)
        return product.reshape(like.shape)

    def _operator(self, name: str, rule: Callable[..., Array], *operands: Array) -> Array:
        """Evaluates a function of windows; exported, it is an operator that copies none."""
        plain = self._reads_its_own_position or max(self.spread) > 1 or not is_uniform(operands)
        if plain:
            return rule(*operands)
        window = {
            "sizes": self.sizes, "results": self.results, "strides": self.strides,
            "padding": tuple(itertools.chain(*self.padding)), "dilation": self.apart,
            "groups": self.groups,
        }  # fmt: skip
        return jax_internals.export_composite(rule, operands, f"jaxeff.{name}", window)[0]


@functools.lru_cache
def _averages_of(taps: Taps) -> Callable[[Array, Array], Array]:
    # Kept, so that equal layers are traced once.
    return lambda image, gate: taps.averages(taps.windows(image), gate)


@functools.lru_cache
def _products_of(taps: Taps) -> Callable[[Array, Array], Array]:
    return lambda image, kernels: taps.products(taps.windows(image), kernels)


Windows = Array | tuple[Array, ...]


_FEW_TAPS = 25  # a kernel of 5 by 5


@jax.jit
def over_taps(x: Array) -> Array:
    """Sums `[batch, taps, ...]` over taps."""
    if x.shape[1] > _FEW_TAPS:
        return x.sum(1)
    # Additions that are fused with what they add: a strided reduction costs XLA ten times that.
    # Parts of one split, as indexing takes three times as many operations, which all are traced.
    parts = lax.split(x, [1] * x.shape[1], axis=1)
    return functools.reduce(lax.add, parts).squeeze(1)


def split_at_contraction(layer: Layer) -> tuple[Sequence[Node], Node | None, Sequence[Node]]:
    """Splits a linear layer into what prepares its operands, the contraction, and what follows."""
    op = layer.op
    if op is None or sum(node.primitive in prim.LINEAR for node in layer.nodes) != 1:
        return layer.nodes, None, ()
    number = layer.nodes.index(op)
    after = layer.nodes[number + 1 :]
    reached = {op.outputs[0]}
    for node in after:
        if not reached.isdisjoint(node.values):
            reached.update(node.outputs)
    # What prepares a bias may stand after the contraction.
    later = [n for n in after if not reached.isdisjoint(n.outputs)]
    return [*layer.nodes[:number], *(n for n in after if n not in later)], op, later


def convolved_layout(op: Node) -> Axes | None:
    """Returns the layout of a convolution's result; None for a dense layer."""
    contraction = Contraction.of(op)
    return _layout(contraction.layouts[2]) if contraction.is_convolution else None


def _layout(numbers: tuple[int, ...]) -> Axes:
    layout = [0] * len(numbers)
    for role, axis in enumerate(numbers):
        layout[axis] = {0: BATCH, 1: CHANNEL}.get(role, FIRST_PLACE + role - 2)
    return tuple(layout)
