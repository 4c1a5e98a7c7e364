"""Latencies of accelerators that aren't at hand: published formulas of cycles, no measurement.

```python
import jax

from jaxeff.contrib import DataflowPipeline, SystolicArray
from jaxeff.nn import small_classifier
from jaxeff.search import Actions, Knapsack, search

f, params, data = small_classifier(64)
for latency in (SystolicArray(rows=8, columns=8), DataflowPipeline(luts=40_000)):
    found = search(
        jax.random.key(0), f, params, data, agent=Knapsack(levels=3), latency=latency, target=0.5,
        actions=Actions(round_to=4), episodes=2, steps=0, batch_size=8,
    )
    assert found.top["ratio"] > 0
```

Sharp edges:
    Layers that multiply with a weight count, and nothing else: no pooling, no sums, no transfers
    between layers. Neither accelerator has floats; a layer left alone has `float_bits` bits.
    A convolution of groups loses whole groups, as `SearchSpace` counts it.
"""

import functools
import math
from typing import Annotated, ClassVar, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float

from jaxeff import core
from jaxeff.compression import FLOAT
from jaxeff.search import Candidate, LatencyError, Policy, SearchSpace

BRICK, MULTIPLIER, WIDEST = 2, 8, 16
"""Bits of Bit Fusion's smallest multiplier, of the eight-bit one that 16 of them make, and at
most."""


UNIT_LUTS, PROCESSING_LUTS, INPUTS = 300, 1.1, 6
"""FINN-R's constants: LUTs of a unit, of a LUT's worth of arithmetic, and inputs of a LUT."""


class _MatrixProduct(NamedTuple):
    """The matrices of a layer, in one of `groups` equal groups of channels."""

    products: int
    outputs: int
    rows: int
    groups: int
    weights: int
    activations: int


@core.register_setting
class SystolicArray(core.Setting):
    """Latency of a systolic array, in cycles: layers one after the other.

    An array of R x C multipliers takes `(2 R + C + T - 2) ceil(S_R / R) ceil(S_C / C)` cycles for a
    layer (Samajdar et al., "A systematic methodology for characterizing scalability of DNN
    accelerators using SCALE-Sim", ISPASS 2020, equations 1 to 4), where S_R, S_C and T are its
    rows, outputs and products in an order that the dataflow decides. A multiplier of 8 by 8 bits is
    16 bricks of 2 by 2, which take more products at once where widths are smaller, and four cycles
    for 16 by 16 (Sharma et al., "Bit Fusion", ISCA 2018). Weights are read once and hide behind the
    arithmetic, or it behind them.

    A layer is a product of matrices: `products` terms in a sum, `outputs` sums, `rows` of them
    (places of a convolution's result, times the batch that the space was read with).

    Attributes:
        rows: Rows of the array, R.
        columns: Columns of the array, C.
        dataflow: What stays in the array: "output", "weight" or "input".
        fused: Whether fewer bits take fewer cycles; else all widths up to eight take the same.
        bandwidth: Bits of weights that memory delivers in a cycle.
        float_bits: Bits of layers that a policy leaves alone, up to 16.

    Raises:
        ValueError: A number is out of bounds, or the dataflow is unknown.
    """

    looked_up: ClassVar[bool] = True
    """Searchers may ask for any policy: nothing is measured."""

    rows: Annotated[int, core.Count(1)] = core.static(16)
    columns: Annotated[int, core.Count(1)] = core.static(16)
    dataflow: Annotated[str, core.Choice("output", "weight", "input")] = core.static("weight")
    fused: bool = core.static(True)
    bandwidth: core.Positive = 128.0
    float_bits: Annotated[int, core.Count(1, WIDEST)] = core.static(WIDEST)

    @core.validate(candidate=core.instance_of(Candidate))
    def cycles(self, candidate: Candidate) -> Float[np.ndarray, " sites"]:
        """Computes cycles of every layer."""
        layers = _products(candidate, self.float_bits)
        return np.array([self._layer(layer) for layer in layers])

    @core.validate(candidate=core.instance_of(Candidate))
    def __call__(self, candidate: Candidate) -> float:
        """Computes cycles of the model."""
        return float(self.cycles(candidate).sum())

    def _layer(self, of: _MatrixProduct) -> float:
        # Bricks work on one sum together, so fewer bits shorten the sum and nothing else.
        least = BRICK if self.fused else MULTIPLIER
        share = _rounded(of.weights, least) * _rounded(of.activations, least) / MULTIPLIER**2
        summed = math.ceil(of.products * share)
        # What is spread over rows and columns, and what streams through (table III of ISPASS 2020).
        down, across, through = {
            "output": (of.rows, of.outputs, summed),
            "weight": (summed, of.outputs, of.rows),
            "input": (summed, of.rows, of.outputs),
        }[self.dataflow]
        folds = math.ceil(down / self.rows) * math.ceil(across / self.columns)
        computing = (2 * self.rows + self.columns + through - 2) * folds
        reading = of.products * of.outputs * of.weights / float(self.bandwidth)
        return of.groups * max(computing, reading)


@core.register_setting
class DataflowPipeline(core.Setting):
    """Latency of an FPGA that has a unit for every layer: cycles between two results.

    A unit of `simd` products for each of `pe` outputs takes
    `rows (products / simd) (outputs / pe)` cycles, whatever its bits, and the slowest unit decides
    (Umuroglu et al., "FINN", FPGA 2017, section 4). Fewer bits make units smaller:

        LUTs = 300 + 1.1 pe (simd (2 ceil((w + a) / 6) - 1) (w + a) + (w + a) (2 simd - 1)
                             + w + a + ceil(log2 products))

    for multipliers, their tree and the accumulator (Blott et al., "FINN-R", TRETS 2018, as FINN's
    compiler estimates it without thresholds and memories). Here units are as parallel as all of
    them together fit on the device.

    Attributes:
        luts: Lookup tables for all units; those of a Zynq-7020 by default.
        float_bits: Bits of layers that a policy leaves alone.

    Raises:
        ValueError: A number is out of bounds.
    """

    looked_up: ClassVar[bool] = True
    """Searchers may ask for any policy: nothing is measured."""

    luts: Annotated[int, core.Count(1)] = core.static(53_200)
    float_bits: Annotated[int, core.Count(1, FLOAT)] = core.static(WIDEST)

    @core.validate(candidate=core.instance_of(Candidate))
    def cycles(self, candidate: Candidate) -> Float[np.ndarray, " sites"]:
        """Computes cycles of every unit, folded to be as fast as all of them fit.

        Raises:
            LatencyError: Even the smallest units don't fit.
        """
        choices = [_foldings(layer) for layer in _products(candidate, self.float_bits)]
        # Any interval that is worth asking for is the cycles of some folding of some unit.
        intervals = sorted({cycles for options in choices for cycles, _ in options})
        smallest = sum(min(luts for _, luts in options) for options in choices)
        if smallest > self.luts:
            raise LatencyError(
                f"DataflowPipeline: the smallest units take {smallest:,.0f} of {self.luts:,} LUTs; "
                "raise `luts`, or prune more"
            )
        # A longer interval never takes more LUTs, so the shortest that fits is found by halving.
        low, high = 0, len(intervals) - 1
        while low < high:
            middle = (low + high) // 2
            fits = sum(luts for _, luts in _within(choices, intervals[middle])) <= self.luts
            low, high = (low, middle) if fits else (middle + 1, high)
        return np.array([cycles for cycles, _ in _within(choices, intervals[low])], float)

    @core.validate(candidate=core.instance_of(Candidate))
    def __call__(self, candidate: Candidate) -> float:
        """Computes cycles between two results.

        Raises:
            LatencyError: Even the smallest units don't fit.
        """
        return float(self.cycles(candidate).max())


@functools.cache
def _foldings(of: _MatrixProduct) -> list[tuple[int, float]]:
    """Lists cycles and LUTs of every folding: `simd` divides the products, `pe` the outputs."""
    bits, outputs = of.weights + of.activations, of.outputs * of.groups
    foldings = []
    for simd in _divisors(of.products):
        multipliers = simd * (2 * math.ceil(bits / INPUTS) - 1) * bits
        accumulator = bits + math.ceil(math.log2(of.products))
        lane = multipliers + bits * (2 * simd - 1) + accumulator
        for pe in _divisors(outputs):
            cycles = of.rows * (of.products // simd) * (outputs // pe)
            foldings.append((cycles, UNIT_LUTS + PROCESSING_LUTS * pe * lane))
    return foldings


def _within(choices: list[list[tuple[int, float]]], interval: int) -> list[tuple[float, float]]:
    """Chooses each unit's smallest folding that keeps an interval; infinite where there is none."""
    return [
        min(
            ((cycles, luts) for cycles, luts in options if cycles <= interval),
            key=lambda one: (one[1], one[0]),
            default=(math.inf, math.inf),
        )
        for options in choices
    ]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _rounded(bits: int, least: int) -> int:
    """Rounds bits up to a width that bricks can be put together to."""
    return max(least, 1 << (bits - 1).bit_length())


@functools.partial(jax.jit, static_argnums=0)
def _counts(space: SearchSpace, policy: Policy) -> tuple[Array, Array, Array]:
    return space.outputs(policy.kept), space.weights(policy), space.macs(policy)


def _products(candidate: Candidate, float_bits: int) -> list[_MatrixProduct]:
    space, policy = candidate.space, candidate.policy
    counts = zip(*map(np.asarray, _counts(space, policy)), strict=True)
    bits = zip(np.asarray(policy.weights), np.asarray(policy.activations), strict=True)
    products_of_layers = []
    for site, (outputs, weights, macs), widths in zip(space.sites, counts, bits, strict=True):
        # Counts are float32 products, whole numbers but for rounding.
        products, rows = (max(1, round(float(n))) for n in (weights / outputs, macs / weights))
        groups = math.ceil(outputs / (site.written.size / site.blocks)) if site.blocks > 1 else 1
        w, a = (min(int(width), float_bits) for width in widths)
        products_of_layers.append(
            _MatrixProduct(products, max(1, int(outputs) // groups), rows, groups, w, a)
        )
    return products_of_layers
