"""What a search decides about a model, layer by layer: the space, its policies, the actions.

```python
import jaxeff
from jaxeff.nn import small_classifier
from jaxeff.search import SearchSpace

f, params, (x, y) = small_classifier()
space = SearchSpace.read(f, params, x[:1])
print(space)
space.macs(space.uncompressed).sum() / 10_000        # of a batch of one, in tens of thousands
```

A layer is a site that multiplies its input with a weight, outside loops. The first layer that makes
a group of channels decides how many of them stay; layers that add to the same channels follow it.
Which channels go is settled before the search, by their scores, so a policy is nothing but numbers:
it may be traced, and thousands of candidates are one program.

Sharp edges:
    what lies inside a loop, and a second use of a weight, is left as it is.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxeff.compression import FLOAT, Uniform, bit_policy, integer_aware
from jaxeff.core import Choice, Count, Number, Setting, Table, register_setting, static
from jaxeff.program import Layer
from jaxeff.program.costs import node_macs
from jaxeff.program.ir import Contraction
from jaxeff.pruning import Channels, Plan, axis_size, channels, dependencies, masked
from jaxeff.pruning.scores import Score, l1

FP32, INT8, MIX = 0, 1, 2
"""Datatypes of a layer: left alone, eight bits, or one to eight bits by bit planes."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Policy:
    """Channels and bits of every layer, as arrays: traced or not, with leading axes for many.

    Attributes:
        kept: Channels of every group.
        datatypes: `FP32`, `INT8` or `MIX`, by layer.
        weights: Bits of the weights by layer; 32 leaves them alone.
        activations: Bits of what layers read.
    """

    kept: Int[Array | np.ndarray, " groups"]
    datatypes: Int[Array | np.ndarray, " sites"]
    weights: Int[Array | np.ndarray, " sites"]
    activations: Int[Array | np.ndarray, " sites"]

    def plain(self) -> dict[str, list[Any]]:
        """Converts it to lists, for JSON."""
        return {name: np.asarray(value).tolist() for name, value in vars(self).items()}

    @classmethod
    def from_plain(cls, fields: dict[str, Any]) -> Policy:
        """Makes a policy of what `plain` returned."""
        return cls(**{name: np.asarray(value, np.int32) for name, value in fields.items()})


Counts = Int[Array | np.ndarray, " groups"]


_OF_CHANNELS = functools.partial(Uniform, symmetric=True)
_OF_SAMPLES = functools.partial(Uniform, per="sample")


@register_setting
class FewBitLayers(Setting):
    """Requirements that a layer meets if a kernel of few bits can compute it.

    Attributes:
        inputs: Divisor of a convolution's input channels.
        outputs: Divisor of the output channels of any layer.
        places: Least number of rows and columns of a convolution's result.
        last: Whether the last layer may have few bits.

    The defaults are those of the thesis' bit-serial kernels (Krieger et al., arXiv 2212.07818).
    """

    inputs: Annotated[int, Count(1)] = static(32)
    outputs: Annotated[int, Count(1)] = static(8)
    places: Annotated[int, Count(1)] = static(2)
    last: bool = static(False)


@dataclass(frozen=True, eq=False)
class Site:
    """A layer that a policy is about.

    Attributes:
        name: The site of the layer.
        group: Number of the group of channels whose count it decides; -1 if it decides none.
        macs: Multiply-accumulates of the whole layer, for the batch that was read.
        written: Axis of its output channels.
        read: Axis of its input channels.
        weights: Scalars in its weight.
        kernel: Places of its kernel; 1 of a dense layer.
        stride: The largest of its strides.
        places: The fewest rows or columns of its result; 0 of a dense layer.
        blocks: Groups of its convolution.
    """

    name: str
    group: int
    macs: int
    written: dependencies.Axis
    read: dependencies.Axis
    weights: int
    kernel: int
    stride: int
    places: int
    blocks: int


@dataclass(frozen=True, repr=False, eq=False)
class SearchSpace:
    """The decisions that a policy holds.

    Attributes:
        channels: The model's groups of channels.
        sites: The layers in order.
        groups: Names of the groups that a layer decides about.
        ranks: Mapping from group to the rank of every channel by its score: 0 is the last to go.
        few_bit_layers: Rule of which layers may have few bits.
    """

    channels: Channels
    sites: tuple[Site, ...]
    groups: tuple[str, ...]
    ranks: dict[str, Int[np.ndarray, " channels"]]
    few_bit_layers: FewBitLayers

    @classmethod
    def read(
        cls,
        f: Callable[..., Any],
        params: Any,
        *args: Any,
        score: Score = l1,
        few_bit_layers: FewBitLayers = FewBitLayers(),
    ) -> SearchSpace:
        """Reads a model.

        Args:
            f: A pure function `f(params, *args)`.
            params: The parameters of `f`, whose channels are scored.
            *args: Further arguments of `f`; the batch is that of latencies and operations.
            score: Score of channels: the highest stay longest (`jaxeff.pruning.scores`).
            few_bit_layers: Rule of which layers may have few bits.

        Raises:
            ValueError: The model has no layer that could be compressed.
        """
        dependences = channels(f, params, *args)
        ids = {
            d: g for d, g in zip(dependences.dimensions, dependences.groups, strict=True) if g.free
        }
        names: list[str] = []
        sites = []
        for layer in dependences.program.layers:
            # A second use of a weight would have to be pruned with the first: it stays as it is.
            if layer.kind == "linear" and layer.weights and not layer.occurrence:
                sites.append(_site(layer, dependences, ids, names))
        if not sites:
            raise ValueError(
                "the model has no layer to compress: none multiplies its input with a weight "
                "outside of a loop"
            )
        scores = score(params, dependences)
        ranks = {}
        for name in names:
            if name not in scores:
                raise ValueError(f"the score says nothing about {name!r}; take another one")
            order = np.argsort(-np.asarray(scores[name], np.float64), kind="stable")
            # The argsort of a permutation is its inverse: here the rank of every channel.
            ranks[name] = np.argsort(order, kind="stable").astype(np.int32)
        return cls(dependences, tuple(sites), tuple(names), ranks, few_bit_layers)

    @property
    def names(self) -> tuple[str, ...]:
        """The sites."""
        return tuple(site.name for site in self.sites)

    @property
    def sizes(self) -> Int[np.ndarray, " groups"]:
        """Channels of every group."""
        return np.array([self.channels[name].size for name in self.groups], np.int32)

    @property
    def uncompressed(self) -> Policy:
        """The policy that leaves the model as it is."""
        bits = np.full(len(self.sites), FLOAT, np.int32)
        return Policy(self.sizes, np.full_like(bits, FP32), bits, bits)

    def plan(self, policy: Policy) -> Plan:
        """Returns the channels that stay; traced where the policy is."""
        keep = {name: self.ranks[name] < policy.kept[i] for i, name in enumerate(self.groups)}
        # Accuracies are those of masked models, so smaller ones have their statistics, if possible.
        crossed = {
            group.name: "zeros"
            for group in self.channels
            if group.name in keep and group.crossed and dependencies.counts_zeros(group)
        }
        return Plan(keep, self.channels, crossed)

    def spec(self, policy: Policy) -> Mapping[str, Any]:
        """Makes the bits of every layer a spec for `integer_aware`.

        Weights have a symmetric range for each output channel, as kernels multiply them, and
        activations one for each sample.
        """
        return bit_policy(
            self.names, policy.weights, policy.activations, method=_OF_CHANNELS,
            of_activations=_OF_SAMPLES,
        )  # fmt: skip

    def compressed(self, f: Callable[..., Any], policy: Policy) -> Callable[..., Any]:
        """Compresses a model by a policy without changing shapes; traced where the policy is."""
        return masked(integer_aware(f, self.spec(policy)), self.plan(policy))

    def inputs(self, kept: Counts) -> Int[Array, " sites"]:
        """Computes input channels of every layer."""
        return self._per_site(lambda site, counts: axis_size(site.read, counts), kept)

    def outputs(self, kept: Counts) -> Int[Array, " sites"]:
        """Computes output channels of every layer."""
        return self._per_site(lambda site, counts: axis_size(site.written, counts), kept)

    def macs(self, policy: Policy) -> Float[Array, " sites"]:
        """Computes multiply-accumulates of every layer, for the batch that was read."""
        return self._products(policy.kept, [site.macs for site in self.sites])

    def bops(self, policy: Policy) -> Float[Array, " sites"]:
        """Computes bit operations of every layer: multiply-accumulates times both widths."""
        widths = jnp.asarray(policy.weights) * jnp.asarray(policy.activations)
        return self.macs(policy) * widths.astype(jnp.float32)

    def weights(self, policy: Policy) -> Float[Array, " sites"]:
        """Counts scalars in the weight of every layer."""
        return self._products(policy.kept, [site.weights for site in self.sites])

    def few_bits(self, kept: Counts) -> Bool[Array, " sites"]:
        """Finds the layers that a kernel of few bits takes, with the channels that stay."""
        legal, inputs, outputs = self.few_bit_layers, self.inputs(kept), self.outputs(kept)
        convolution = np.array([site.places > 0 for site in self.sites])
        fits = np.array([s.blocks == 1 and s.places >= legal.places for s in self.sites])
        # Bit-serial kernels pack channels into words, so their numbers have to fit.
        fits_kernels = (outputs % legal.outputs == 0) & (
            ~convolution | (fits & (inputs % legal.inputs == 0))
        )
        last = np.arange(len(self.sites)) == len(self.sites) - 1
        return jnp.asarray(fits_kernels & ~(last & (not legal.last)))

    def _products(self, kept: Counts, totals: list[int]) -> Float[Array, " sites"]:
        def share(site: Site, counts: Mapping[dependencies.Dimension, Any]) -> Any:
            # Products are linear in outputs and inputs; a group's inputs go with its outputs.
            share_written = axis_size(site.written, counts) / site.written.size
            return (
                share_written
                if site.blocks > 1
                else share_written * axis_size(site.read, counts) / site.read.size
            )

        return self._per_site(share, kept) * jnp.asarray(totals, jnp.float32)

    def _per_site(
        self, count: Callable[[Site, Mapping[dependencies.Dimension, Any]], Any], kept: Any
    ) -> Array:
        ids = dict(zip((g.name for g in self.channels), self.channels.dimensions, strict=True))
        counts = {ids[name]: kept[i] for i, name in enumerate(self.groups)}
        return jnp.stack([jnp.asarray(count(site, counts)) for site in self.sites])

    @property
    def table(self) -> Table:
        """A row per layer."""
        legal = np.asarray(self.few_bits(self.sizes))
        rows = [
            (
                site.name, str(site.read.size), str(site.written.size), f"{site.macs:,}",
                self.groups[site.group] if site.group >= 0 else "", "yes" if legal[i] else "no",
            )
            for i, site in enumerate(self.sites)
        ]  # fmt: skip
        columns = ("layer", "in>", "out>", "MACs>", "decides about", "few bits")
        return Table(columns, rows)

    def __repr__(self) -> str:
        return str(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def _site(
    layer: Layer, channels: Channels, ids: Mapping[dependencies.Dimension, Any], names: list[str]
) -> Site:
    """Reads one layer; a group that it is the first to make is added to `names`."""
    (node,) = [node for node in layer.nodes if node_macs(node)]
    labels = channels.labels
    out, shape = labels.of(node.outputs[0]), node.outputs[0].aval.shape
    # A dot product may have its weight on either side, a convolution on the right.
    weight = next(i for i, v in enumerate(node.inputs) if getattr(v, "is_weight", False) or i == 1)
    contraction = Contraction.of(node)
    if not contraction.is_convolution:
        of_weight, summed = labels.of(node.inputs[weight]), contraction.summed(weight)
        written: dependencies.Axis = _merged(
            [a for i, a in enumerate(of_weight) if i not in summed]
        )
        read: dependencies.Axis = _merged([a for i, a in enumerate(of_weight) if i in summed])
        kernel, stride, places, blocks = 1, 1, 0, 1
    else:
        image, _, result = contraction.layouts
        written = dependencies.resolve_axis(out[result[1]])
        read = dependencies.resolve_axis(labels.of(node.inputs[0])[image[1]])
        kernel, blocks = contraction.taps, contraction.groups
        stride = max(node.params["window_strides"], default=1)
        places = min((shape[i] for i in contraction.window(2)), default=0)
    group = -1
    for dimension in dependencies.dimensions(written):
        # The first layer that makes a group decides about it; those that add to it have none.
        if dimension in ids and layer.site in ids[dimension].sites:
            name = ids[dimension].name
            if name not in names:
                names.append(name)
                group = len(names) - 1
            break
    size = math.prod(node.inputs[weight].aval.shape)
    return Site(
        layer.site, group, node_macs(node), written, read, size, kernel, stride, places, blocks
    )


def _merged(axes: list[dependencies.Axis]) -> dependencies.Axis:
    return (
        dependencies.resolve_axis(axes[0])
        if len(axes) == 1
        else dependencies.resolve_axis(dependencies.AxisProduct(tuple(axes)))
    )


@register_setting
class Actions(Setting):
    """Mapping of actions to policies.

    A searcher acts by numbers from 0 to 1 per layer. An action says how much of a layer goes,
    whatever the layer: 0 leaves it alone. What it comes to is Galen's mapping (Klein's thesis,
    section 4.2.3; Krieger et al., arXiv 2212.07818):

    ```text
    channels    R * clip(floor((1 - p) C / R) + 1, 1, C / R)
    datatype    of the larger q of both:  q <= t_fp: FP32,  q <= t_int: INT8,  else MIX
    bits (MIX)  clip(floor((1 - r) B) + 1, 1, B),  r = (q - t_int) / (1 - t_int)
    ```

    A layer that no kernel of few bits takes, with the channels that are left of it, has eight bits
    in the place of MIX.

    Attributes:
        methods: "pruning" (one action a layer), "quantization" (weights, activations) or "both"
            (all three, pruning first).
        round_to: Divisor of the channels that stay; None takes the thesis', 32 if `methods` is
            "both" and 1 otherwise. A group with fewer keeps all.
        bits: The most bits of MIX. The thesis' text has 8, its released searches 6.
        float_below: An action up to this leaves a layer in float32.
        eight_below: One up to this gives it eight bits.

    Raises:
        ValueError: A number is out of bounds, or the thresholds aren't in order.
    """

    methods: Annotated[str, Choice("pruning", "quantization", "both")] = static("both")
    round_to: Annotated[int | None, Count(1)] = static(None)
    bits: Annotated[int, Count(1, 8)] = static(8)
    float_below: Annotated[float, Number(0, below=1)] = static(0.2)
    eight_below: Annotated[float, Number(0, below=1)] = static(0.5)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.float_below > self.eight_below:
            raise ValueError(
                f"Actions.float_below={self.float_below} lies above "
                f"eight_below={self.eight_below}: no action would mean eight bits."
            )

    @property
    def count(self) -> int:
        """Actions of a layer."""
        return {"pruning": 1, "quantization": 2, "both": 3}[self.methods]

    @property
    def prunes(self) -> bool:
        """Whether channels go."""
        return self.methods != "quantization"

    @property
    def quantizes(self) -> bool:
        """Whether bits go."""
        return self.methods != "pruning"

    def policy(self, space: SearchSpace, actions: Float[Array, "sites count"]) -> Policy:
        """Converts actions to a policy; they may be traced."""
        actions = jnp.asarray(actions)
        kept = self.kept(space, actions[:, 0]) if self.prunes else jnp.asarray(space.sizes)
        uncompressed = space.uncompressed
        if not self.quantizes:
            return Policy(
                kept,
                *map(
                    jnp.asarray,
                    (uncompressed.datatypes, uncompressed.weights, uncompressed.activations),
                ),
            )
        weights, activations = actions[:, -2], actions[:, -1]
        # One kernel multiplies both, so the stronger action decides its datatype.
        larger = jnp.maximum(weights, activations)
        few = jnp.where(space.few_bits(kept), MIX, INT8)
        eight = jnp.where(larger <= self.eight_below, INT8, few)
        datatypes = jnp.where(larger <= self.float_below, FP32, eight)

        def width(q: Array) -> Array:
            of_datatype = jnp.where(datatypes == MIX, self.width(q), 8)
            return jnp.where(datatypes == FP32, FLOAT, of_datatype)

        return Policy(kept, datatypes, width(weights), width(activations))

    def width(self, q: Float[Array | np.ndarray, " sites"]) -> Int[Array, " sites"]:
        """Computes bits of MIX."""
        r = (q - self.eight_below) / (1 - self.eight_below)
        bits = jnp.floor((1 - r) * self.bits) + 1
        return jnp.clip(bits, 1, self.bits).astype(jnp.int32)

    def kept(self, space: SearchSpace, p: Float[Array, " sites"]) -> Int[Array, " groups"]:
        """Counts the channels that stay of every group, by the layer that decides about it."""
        deciding = {site.group: i for i, site in enumerate(space.sites) if site.group >= 0}
        # Blocks of 32 keep the kernels of few bits possible (`FewBitLayers`).
        step = self.round_to or (32 if self.methods == "both" else 1)
        sizes = jnp.asarray(space.sizes)
        if not space.groups:
            return sizes
        chosen = p[jnp.asarray([deciding[i] for i in range(len(space.groups))])]
        blocks = sizes // step
        left = jnp.floor((1 - chosen) * sizes.astype(chosen.dtype) / step).astype(jnp.int32) + 1
        kept_blocks = jnp.clip(left, 1, blocks)
        # What is no multiple stays whole at the upper end, as does a group of less than a block.
        return jnp.where((kept_blocks >= blocks) | (blocks < 1), sizes, kept_blocks * step)
