"""`table_latency`: a candidate's time as the sum of its kernels' times, kept by layer.

```python
import jax.numpy as jnp
from jaxeff.nn import small_classifier
from jaxeff.search import Candidate, Candidates, SearchSpace
from jaxeff_export import table_latency

f, params, (x, y) = small_classifier(32)
space = SearchSpace.read(f, params, x[:1])
candidates = Candidates(f, params, (x, y), (x, y), space, steps=0, batch_size=32)
latency = table_latency(x[:1], number=2, repeat=3)
latency(Candidate(space.uncompressed, space, candidates.smaller))      # compiled and measured
latency(Candidate(space.uncompressed, space, candidates.smaller))      # looked up
```

A cell is a layer with the channels that it reads and makes and its bits, on a target; what it holds
is its kernels' time; layers of one geometry share theirs. A cell that isn't known is measured: a
candidate that holds it is compiled and timed, and every layer's share of the time goes into its
cell. With `nodes` only channels at these nodes have cells, so that a table is full after a few
dozen measurements whatever a search tries. `prepare` fills it for many candidates at once, with far
fewer measurements than one after the other.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxeff.core import input_batch, instance_of, path_like, static_integer, validate
from jaxeff.pruning.dependencies import Axis, dimensions
from jaxeff.search import FLOAT, Candidate, LatencyError, Policy, SearchSpace, Site
from jaxeff.store import Journal
from jaxeff_export.boards import Board, BoardError
from jaxeff_export.bundle import Bundle, kernel_calls
from jaxeff_export.bundle.files import BundleError
from jaxeff_export.bundle.running import OperatorTime
from jaxeff_export.latency._measured import AlternatingTimer, compiled, leaves_of
from jaxeff_export.operators.integer import dot_of, planes_of
from jaxeff_export.targets import resolve_target, tvm_target


class Cell(NamedTuple):
    """The properties of a layer that determine its time.

    Attributes:
        layer: Number of the first layer of its geometry.
        channels: Channels of the groups that it makes, then of those that it reads and doesn't
            make.
        weights: Bits of the weights.
        activations: Bits of what it reads.
    """

    layer: int
    channels: tuple[int, ...]
    weights: int
    activations: int


class Share(NamedTuple):
    """A part of a layer's time.

    Attributes:
        cell: Cell whose time it is a part of.
        weight: Factor of the cell's time in the layer's.
    """

    cell: Cell
    weight: float


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of a space's policies on a target.

    Between nodes: kernels make whole vectors of channels, so the channels that a layer makes are
    rounded up to the next node; those that it reads are interpolated between two nodes. Widths that
    are counted by planes are interpolated between one bit each and the most of either: planes of
    activations are packed in every call, those of weights once.

    Layers in float are measured among layers in float, layers of bits among layers of bits. If a
    layer of bits is read by one in float, or by two of different widths, its result is written in a
    wider form or a second time: a conversion, whose time is proportional to the result's size.

    Attributes:
        space: Search space of the policies.
        written: For each layer, the numbers of the groups of channels that it makes.
        read: For each layer, the numbers of those that it reads and doesn't make.
        like: For each layer, the number of the first layer of its geometry.
        makers: For each layer, the number of the layer that writes what it reads; -1 if none
            does.
        nodes: Numbers of channels that have cells; None: all have.
        worth: The largest product of widths that the target has kernels by planes for.
        steps: Whether the channels that a layer makes are rounded up to a node, as whole vectors
            take their time, or interpolated.
    """

    space: SearchSpace
    written: tuple[tuple[int, ...], ...]
    read: tuple[tuple[int, ...], ...]
    like: tuple[int, ...]
    makers: tuple[int, ...]
    nodes: tuple[int, ...] | None
    worth: int
    steps: bool = True

    @classmethod
    def of(
        cls,
        space: SearchSpace,
        nodes: Sequence[int] | None,
        target: str | Mapping[str, Any],
        steps: bool = True,
    ) -> Cells:
        """Reads the cells of a space.

        `nodes` are the numbers of channels that have cells, None for all; `steps` says whether
        channels that are made are rounded up.
        """
        number = {name: i for i, name in enumerate(space.groups)}
        dimension_groups = zip(space.channels.dimensions, space.channels.groups, strict=True)
        numbers = {
            dimension: number[g.name] for dimension, g in dimension_groups if g.name in number
        }

        def groups(axis: Axis) -> tuple[int, ...]:
            return tuple(dict.fromkeys(numbers[d] for d in dimensions(axis) if d in numbers))

        sites = space.sites
        written = tuple(groups(site.written) for site in sites)
        read = tuple(
            tuple(g for g in groups(s.read) if g not in maker_groups)
            for s, maker_groups in zip(sites, written, strict=True)
        )
        # A layer that adds to an earlier one's result has a shortcut in its kernel.
        adds = [
            bool(maker_groups) and maker_groups in written[:i]
            for i, maker_groups in enumerate(written)
        ]  # to an earlier layer
        geometries = [
            (_geometry(s), *_sizes(space, written[i]), *_sizes(space, read[i]), adds[i])
            for i, s in enumerate(sites)
        ]
        # Equal geometries run equal kernels: the first such layer stands for all.
        like = tuple(geometries.index(geometry) for geometry in geometries)
        makers = tuple(_maker(sites, i) for i in range(len(sites)))
        chosen = None if nodes is None else tuple(sorted(nodes))
        return cls(space, written, read, like, makers, chosen, worth_of_planes(target), steps)

    def shares(self, policy: Policy) -> list[list[Share]]:
        """Splits every layer of a policy into cells, and the share of each."""
        weights, activations = np.asarray(policy.weights), np.asarray(policy.activations)
        kept, sizes = np.asarray(policy.kept).tolist(), self.space.sizes.tolist()
        layers = []
        for i, like in enumerate(self.like):
            nodes_of = self._next if self.steps else self._between
            channels = [nodes_of(kept[g], sizes[g]) for g in self.written[i]]
            channels += [self._between(kept[g], sizes[g]) for g in self.read[i]]
            bits = self._bits(int(weights[i]), int(activations[i]))
            layer_shares = []
            for nodes, (of, share) in itertools.product(itertools.product(*channels), bits):
                # Multilinear: the product of the shares along each group of channels and the bits.
                weight = share * float(np.prod([w for _, w in nodes]))
                layer_shares.append(Share(Cell(like, tuple(n for n, _ in nodes), *of), weight))
            layers.append(layer_shares)
        return layers

    def conversions(self, policy: Policy) -> list[float]:
        """Counts, by layer of bits, the numbers it writes once more for readers of other forms.

        Readers of other widths each take codes of their own, and those in float the widest form.
        The input of a dense layer was averaged before, so it is small.
        """
        widths = np.where(_in_float(policy), FLOAT, policy.activations).tolist()
        forms: dict[int, set[int]] = {}
        for reader, maker in enumerate(self.makers):
            if maker >= 0 and widths[maker] != FLOAT and self.space.sites[reader].places:
                forms.setdefault(maker, set()).add(widths[reader])
        numbers = [0.0] * len(self.like)
        for maker, reader_widths in forms.items():
            site = self.space.sites[maker]
            left = [policy.kept[g] / self.space.sizes[g] for g in self.written[maker]]
            written = site.written.size * site.places**2 * float(np.prod(left))
            # One form is written anyway; each more, and every one in float, is a conversion.
            numbers[maker] = (len(reader_widths) - 1 + (FLOAT in reader_widths)) * written
        return numbers

    def design(self, policy: Policy, missing: Iterable[Cell]) -> tuple[Policy, list[Cell]]:
        """Designs a policy that holds many missing cells, the first included; also lists its cells.

        `policy` has the settings wherever no cell is missing: of the whole model in a table with
        nodes.
        """
        missing = list(missing)
        first, in_float = missing[0], missing[0].weights == FLOAT
        # Float and integer layers slow each other by conversions, so a design holds one kind only.
        wanted: dict[tuple[int, tuple[int, ...]], tuple[int, int]] = {}
        for cell in missing:
            if (cell.weights == FLOAT) == in_float:
                wanted.setdefault(cell[:2], cell[2:])
        base = np.asarray(policy.kept) if self.nodes is None else self.space.sizes
        kept = dict(enumerate(base.tolist()))
        fixed = dict(zip(self._groups(self.like.index(first.layer)), first.channels, strict=True))
        kept |= fixed
        channel_choices = [
            dict(zip(self._groups(i), channels, strict=True))
            for layer, channels in wanted for i, like in enumerate(self.like) if like == layer
        ]  # fmt: skip
        for group in [g for g in kept if g not in fixed] * 2:  # the best of each, twice around
            options = {kept[group]: None} | {
                choice[group]: None for choice in channel_choices if group in choice
            }
            held = {n: self._held(kept | {group: n}, wanted) for n in options}
            kept[group] = max(held, key=held.__getitem__)
        rest = (FLOAT, FLOAT) if in_float else (8, 8)
        # Of layers with one geometry the first takes the missing bits: one measurement is enough.
        cells, taken = [], set()
        for i, like in enumerate(self.like):
            of = like, tuple(kept[g] for g in self._groups(i))
            bits = first[2:] if of == first[:2] else wanted.get(of, rest)
            cells.append(Cell(*of, *(rest if of in taken else bits)))
            taken.add(of)
        weights, activations = (np.array([cell[j] for cell in cells], np.int32) for j in (2, 3))
        sizes = np.array([kept[g] for g in range(len(base))], np.int32)
        return Policy(sizes, self.space.uncompressed.datatypes, weights, activations), cells

    def _groups(self, layer: int) -> tuple[int, ...]:
        return (*self.written[layer], *self.read[layer])

    def _held(self, kept: Mapping[int, int], wanted: Mapping[Any, Any]) -> int:
        """Counts the layers that have channels that are wanted."""
        held = {(s, tuple(kept[g] for g in self._groups(i))) for i, s in enumerate(self.like)}
        return len(held & wanted.keys())

    def mixed(self) -> Policy:
        """Returns the whole model with every second layer in float, for conversions."""
        uncompressed = self.space.uncompressed
        bits = np.where(np.arange(len(self.like)) % 2, FLOAT, 8).astype(np.int32)
        return Policy(uncompressed.kept, uncompressed.datatypes, bits, bits)

    def _grid(self, size: int) -> list[int]:
        # The full size is always a node, so that every number of channels lies below one.
        return [n for n in self.nodes or () if n < size] + [size]

    def _next(self, count: int, size: int) -> list[tuple[int, float]]:
        """Rounds channels that a layer makes up to the next node."""
        if self.nodes is None:
            return [(count, 1.0)]
        return [(next(n for n in self._grid(size) if n >= count), 1.0)]

    def _between(self, count: int, size: int) -> list[tuple[int, float]]:
        """Interpolates channels that a layer reads between the nodes around them."""
        if self.nodes is None:
            return [(count, 1.0)]
        nodes = self._grid(size)
        if count <= nodes[0]:
            return [(nodes[0], 1.0)]
        i = int(np.searchsorted(nodes, count))
        if nodes[i] == count:
            return [(count, 1.0)]
        low, high = nodes[i - 1], nodes[i]
        # Time is linear in what is read: products grow with the channels of the input.
        share = (count - low) / (high - low)
        return [(low, 1 - share), (high, share)]

    def _bits(self, weights: int, activations: int) -> list[tuple[tuple[int, int], float]]:
        """Finds the kernel that a layer has: float, bytes, or planes."""
        if FLOAT in (weights, activations):
            return [((FLOAT, FLOAT), 1.0)]
        if weights * activations > self.worth:
            return [((8, 8), 1.0)]
        if self.nodes is None or self.worth == 1:
            return [((weights, activations), 1.0)]
        # Linear in both widths, through the corners (1, 1), (most, 1) and (1, most).
        most = min(self.worth, 8)  # codes have no more bits
        of_weights, of_activations = ((width - 1) / (most - 1) for width in (weights, activations))
        shares = [
            ((1, 1), 1 - of_weights - of_activations),
            ((most, 1), of_weights),
            ((1, most), of_activations),
        ]
        return [(of, share) for of, share in shares if share]


def _in_float(policy: Policy) -> np.ndarray:
    return (np.asarray(policy.weights) == FLOAT) | (np.asarray(policy.activations) == FLOAT)


def _geometry(site: Site) -> tuple[int, ...]:
    """Lists the sizes that layers of one kernel have in common."""
    return (
        site.macs, site.written.size, site.read.size, site.weights, site.kernel, site.stride,
        site.places, site.blocks,
    )  # fmt: skip


def _sizes(space: SearchSpace, groups: Iterable[int]) -> tuple[tuple[int, ...]]:
    return (tuple(int(space.sizes[g]) for g in groups),)


def _maker(sites: Sequence[Site], i: int) -> int:
    """Finds the last layer before a layer that makes what it reads."""
    wanted = set(dimensions(sites[i].read))
    before = (j for j in range(i - 1, -1, -1) if wanted & set(dimensions(sites[j].written)))
    return next(before, -1)


def worth_of_planes(target: str | Mapping[str, Any]) -> int:
    """Returns the largest product of widths for which a target counts bits plane by plane."""
    where = tvm_target(resolve_target(target))
    planes = planes_of(where, dot_of(where))
    return planes.worth - 1 if planes else 0


class TableLatency:
    """A latency that is looked up; made by `table_latency`.

    Sharp edges:
        A cell holds a share of the time of the whole, launches too, so that sums are times end to
        end.
        Where layers in float read layers of bits, or two of other widths read the same, every
        number that is written for it costs the same time (a conversion), measured once on the whole
        model with every second layer in float.
        Sums are predictions: `search(..., refinement=Refinement(measured_latency(x[:1])))` measures
        what it returns.
        Cores are slower at times: every measurement is taken in turns with the whole model's, and
        counted relative to it.

    Attributes:
        fills: Measurements that this object made.
        looked_up: For searchers: asking costs no measurement where nothing is new.
    """

    looked_up, _steps = True, True

    def __init__(
        self,
        inputs: tuple[Any, ...],
        target: str | Mapping[str, Any],
        turns: AlternatingTimer,
        folder: str | Path | None,
        nodes: Sequence[int] | None,
        database: str | Path | None,
    ) -> None:
        self.fills = 0
        self._inputs, self._target, self._turns = inputs, target, turns
        self._folder, self._database = folder, database
        self._nodes = None if nodes is None else tuple(sorted(nodes))
        self._of: Cells | None = None
        self._known: dict[Cell, list[float]] = {}
        self._conversion: float | None = None
        self._kept: Journal | None = None

    def __call__(self, candidate: Candidate) -> float:
        """Looks up the seconds of a call.

        Raises:
            LatencyError: A new cell can't be measured.
        """
        return sum(self.layers(candidate))

    def layers(self, candidate: Candidate) -> list[float]:
        """Looks up the seconds of every layer of a candidate; new cells are measured first."""
        apart = self._apart(candidate)
        cells = self._begin(candidate.space)
        conversions = cells.conversions(candidate.policy)
        per_number = self._per_number(candidate, cells) if any(conversions) else 0.0
        return [
            alone + conversion * per_number
            for alone, conversion in zip(apart, conversions, strict=True)
        ]

    def _apart(self, candidate: Candidate) -> list[float]:
        """Looks up the seconds of every layer without conversions."""
        self.prepare([candidate])
        return [
            # The median: a cell may be measured in several designs, some while the core was slow.
            sum(share.weight * statistics.median(self._known[share.cell]) for share in shares)
            for shares in self._begin(candidate.space).shares(candidate.policy)
        ]

    def prepare(self, candidates: Iterable[Candidate]) -> None:
        """Measures the new cells of several candidates of one space.

        Raises:
            LatencyError: It can't be measured.
        """
        for one in (candidates := list(candidates)):
            cells = self._begin(one.space)
            missing = self._missing(cells, one)
            if missing and cells.nodes is not None:  # of all of them: one design holds many
                missing_of_all = (
                    cell for each in candidates for cell in self._missing(cells, each)
                )
                missing = list(dict.fromkeys(missing_of_all))
            # Every design holds the first missing cell at least, so this ends.
            while missing:
                self._fill(one, cells, missing)
                missing = [cell for cell in missing if cell not in self._known]

    def _missing(self, cells: Cells, candidate: Candidate) -> list[Cell]:
        wanted = [share.cell for shares in cells.shares(candidate.policy) for share in shares]
        return [cell for cell in dict.fromkeys(wanted) if cell not in self._known]

    def _begin(self, space: SearchSpace) -> Cells:
        if self._of is not None and self._of.space is space:
            return self._of
        self._of = Cells.of(space, self._nodes, self._target, self._steps)
        if self._folder is not None and self._kept is None:
            sites = [
                [s.name, s.macs, s.weights, s.kernel, s.stride, s.places, s.blocks]
                for s in space.sites
            ]
            # The journal refuses a folder whose model, target or board differs from this key.
            self._kept = Journal(Path(self._folder) / "kernels.jsonl", {
                "target": repr(dict(sorted(resolve_target(self._target).items()))),
                "board": str(getattr(self._turns.board, "name", self._turns.board)),
                "sites": sites, "nodes": list(self._nodes or ()),
            })  # fmt: skip
            for task in self._kept:
                for (layer, channels, *bits), seconds in self._kept[task]["cells"]:
                    cell = Cell(layer, tuple(channels), *bits)
                    self._known.setdefault(cell, []).append(seconds)
        return self._of

    def _fill(self, candidate: Candidate, cells: Cells, missing: list[Cell]) -> None:
        """Measures a candidate that holds as many of the missing cells as one can."""
        policy, held = cells.design(candidate.policy, missing)
        rows = list(zip(held, self._measure(candidate, policy), strict=True))
        # Written down before it counts, so that a table on disk never lacks what was used.
        if self._kept is not None:
            self._kept.add([len(self._kept), "cells"], {"cells": rows})
        for cell, seconds in rows:
            self._known.setdefault(cell, []).append(seconds)

    def _per_number(self, candidate: Candidate, cells: Cells) -> float:
        """Returns seconds per number converted: what a mixed model takes beyond its cells."""
        kept = self._kept
        if self._conversion is None and kept is not None and "conversion" in kept:
            self._conversion = kept["conversion"]["seconds"]
        if self._conversion is None:
            mixed = Candidate(cells.mixed(), candidate.space, candidate.make)
            apart = sum(self._apart(mixed))
            took = sum(self._measure(candidate, mixed.policy))
            # Noise may make the mixed model faster than its cells: no time is negative.
            self._conversion = max(took - apart, 0.0) / sum(cells.conversions(mixed.policy))
            if kept is not None:
                kept.add("conversion", {"cells": [], "seconds": self._conversion})
        return self._conversion

    def _measure(self, candidate: Candidate, policy: Policy) -> list[float]:
        """Measures the seconds of every layer, in turns with the whole model."""
        self.fills += 1
        space = candidate.space
        inputs, target, database = self._inputs, self._target, self._database
        turns = self._turns
        profiles: list[Sequence[OperatorTime]] = []
        try:
            if turns.uncompressed is None:
                self._start(compiled(candidate, space.uncompressed, inputs, target, database))
            bundle = compiled(candidate, policy, inputs, target, database)
            leaves = leaves_of(candidate.make(policy).params)
            calls = kernel_calls(bundle.manifest, bundle.artifact, space.names, leaves)
            # A profile after every turn: shares and total are of the same moments.
            seconds = turns.seconds(
                bundle, lambda: profiles.append(bundle.profile(turns.board, *turns.times))
            )
        except (BoardError, BundleError) as error:
            raise LatencyError(f"{turns.board}: {error}") from error
        return _split(profiles, calls, len(space.sites), seconds)

    def _start(self, uncompressed: Bundle) -> None:
        """Times the whole model; what it took when the table was begun stays the unit."""
        kept = self._kept
        known = kept["whole"]["seconds"] if kept is not None and "whole" in kept else None
        self._turns.start(uncompressed, known)
        if kept is not None and known is None:
            kept.add("whole", {"cells": [], "seconds": self._turns.first})


@validate(
    inputs=input_batch,
    number=static_integer(),
    repeat=static_integer(),
    database=path_like,
    board=instance_of(str, Board),
)
def table_latency(
    *inputs: Any,
    target: str | Mapping[str, Any] = "host",
    board: str | Board = "local",
    folder: str | Path | None = None,
    nodes: Sequence[int] | None = None,
    number: int = 5,
    repeat: int = 11,
    database: str | Path | None = None,
) -> TableLatency:
    """Makes a latency for `jaxeff.search.search`: looked up, and measured where it is new.

    Args:
        *inputs: An example of what the model reads.
        target: Target to compile for, as for `deploy`.
        board: Board to measure on.
        folder: Folder that keeps the table; None for as long as the object lives.
        nodes: Numbers of channels that are measured: a layer's time is that of making the next
            node's channels, interpolated by the channels it reads. None measures every cell.
        number: Calls per measurement.
        repeat: Measurements.
        database: Tuned schedules, as for `deploy`.

    Raises:
        CheckpointError: The folder holds the table of another model, target or board.
    """
    turns = AlternatingTimer(board, number, repeat)
    return TableLatency(inputs, target, turns, folder, nodes, database)


def _split(
    profiles: Sequence[Sequence[OperatorTime]], calls: Sequence[Any], layers: int, seconds: float
) -> list[float]:
    """Splits a time over layers, by their kernels' times."""
    kernels = {o.name: o for profile in profiles for o in profile}
    spent = {
        name: statistics.median(o.ms for p in profiles for o in p if o.name == name) / o.calls
        for name, o in kernels.items()
    }
    milliseconds = [0.0] * layers
    for call in calls:
        milliseconds[call.layers[0]] += spent.get(call.kernel, 0.0)
    total = sum(milliseconds)
    # Profiles run kernels one by one, with overheads of their own: only their ratios count.
    return [seconds * each / total for each in milliseconds]
