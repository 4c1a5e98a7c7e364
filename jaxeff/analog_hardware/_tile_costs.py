"""What a model costs on crossbars: energy and time of every layer, and what bounds it.

```python
import jax

from jaxeff.analog_hardware import Crossbar, tile_costs
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier(32)
x = x - x.min()                                          # pulses can't be negative
print(tile_costs(f, params, x, {"fc*:linear": Crossbar(input_bits=8)}))
```

A vector is sent to all tiles of a layer at once. Every cycle drives the rows, lets the cells
conduct, and is read by the tile's converters, one column after the other each; partial sums of row
tiles are added digitally. The defaults are ISAAC's, bit by bit in cycles of 100 ns.

Sharp edges:
    What isn't on crossbars (activations, memories, networks between tiles) has no cost here.
    Layers run one after the other; a pipeline over examples hides all but the slowest.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from jaxeff import core
from jaxeff.analog_hardware._crossbar import Crossbar
from jaxeff.analog_hardware._mapping import Placement, partition
from jaxeff.analog_hardware._products import crossbars
from jaxeff.program import trace


@core.register_setting
class TileCosts(core.Setting):
    """Energies and times of a tile's parts.

    Attributes:
        conversion: Joules of one conversion of a column, at the width below.
        conversion_bits: Width to which that belongs; a bit more doubles it (Walden).
        driver: Joules of one row in one cycle.
        cell: Joules of one cell in one cycle; a signed weight has two.
        addition: Joules of adding two partial sums.
        cycle: Seconds of one cycle.
        conversion_time: Seconds of one conversion.
        converters: Number of converters of a tile, which share its columns.
        serial: Whether inputs are sent bit by bit, each converted, or as pulses of up to
            `2**bits - 1` cycles that are converted once.

    Raises:
        ValueError: A number is out of bounds.

    References:
        Shafiee et al., "ISAAC: a convolutional neural network accelerator with in-situ analog
        arithmetic in crossbars", ISCA 2016, table 1: converters, drivers and cells.
        Horowitz, "Computing's energy problem", ISSCC 2014: the addition of 32 bits in 45 nm.
    """

    conversion: core.NonNegative = 1.67e-12
    conversion_bits: Annotated[int, core.Count(1, 24)] = core.static(8)
    driver: core.NonNegative = 3.9e-13
    cell: core.NonNegative = 1.83e-15
    addition: core.NonNegative = 1e-13
    cycle: core.Positive = 1e-7
    conversion_time: core.Positive = 1 / 1.2e9
    converters: Annotated[int, core.Count(1)] = core.static(1)
    serial: bool = core.static(True)


ISAAC = TileCosts()
"""The parts of ISAAC's tiles."""


@dataclass(frozen=True)
class TileLayerCost:
    """Cost of one layer for one example.

    Attributes:
        site: The layer.
        energy: Joules.
        latency: Seconds.
        conversions: Share of the energy that converters take.
        drivers: Share of the energy that the rows' drivers take.
        cells: Share of the energy that the cells take.
        operations: Multiplications and additions.
        bound: What the time is bound by, "conversions" or "cycles".
        intensity: Operations per conversion, which raises the converters' bound.
    """

    site: str
    energy: float
    latency: float
    conversions: float
    drivers: float
    cells: float
    operations: float
    bound: str
    intensity: float


class TileReport(tuple[TileLayerCost, ...]):
    """A `TileLayerCost` per site, in the order of the program; prints as a table with sums."""

    @property
    def energy(self) -> float:
        """Joules of an example."""
        return sum(layer.energy for layer in self)

    @property
    def latency(self) -> float:
        """Seconds of an example, one layer after the other."""
        return sum(layer.latency for layer in self)

    @property
    def efficiency(self) -> float:
        """Operations per joule."""
        return sum(layer.operations for layer in self) / self.energy

    def __str__(self) -> str:
        columns = ("site", "energy/nJ>", "time/us>", "conversions>", "drivers>", "cells>",
                   "ops per conversion>", "bound")  # fmt: skip
        rows = [
            (c.site, f"{1e9 * c.energy:.3g}", f"{1e6 * c.latency:.3g}", f"{c.conversions:.0%}",
             f"{c.drivers:.0%}", f"{c.cells:.0%}", f"{c.intensity:.0f}", c.bound) for c in self
        ]  # fmt: skip
        total = (f"{1e-12 * self.efficiency:.3g} TOPS/W", f"{1e9 * self.energy:.3g}",
                 f"{1e6 * self.latency:.3g}", *("",) * 5)  # fmt: skip
        return str(core.Table(columns, rows, total=total))

    __repr__ = __str__


@core.validate(
    batch=core.input_batch, spec=core.spec_of(Crossbar), costs=core.instance_of(TileCosts)
)
def tile_costs(
    f: Callable[..., Any],
    params: Any,
    batch: Any,
    spec: Mapping[str, Crossbar | None],
    costs: TileCosts = ISAAC,
) -> TileReport:
    """Estimates energy and time of the layers of a model that run on crossbars.

    ```python
    from jaxeff.analog_hardware import Crossbar, TileCosts, tile_costs
    from jaxeff.nn import small_classifier

    f, params, (x, y) = small_classifier(32)
    array = Crossbar(rows=256, columns=256, input_bits=8)
    report = tile_costs(f, params, x - x.min(), {"fc1": array}, TileCosts(converters=8))
    print(report, report.energy, report.latency)
    ```

    Args:
        f: A pure function `f(params, *args)`.
        params: The parameters of `f`.
        batch: `args` as a tuple, or the only one of them; first axes count examples.
        spec: Maps patterns of linear sites to `Crossbar` settings.
        costs: Energies and times of a tile's parts; ISAAC's by default.

    Returns:
        A tuple of a `TileLayerCost` per site, for one example.

    Raises:
        TypeError: The spec isn't a mapping from patterns to `Crossbar` settings.
        ValueError: A pattern matches no site, or one that isn't linear, or inputs are negative.
    """
    placements = partition(f, params, batch, spec)
    arrays = crossbars(spec, trace(f, params, *core.as_arguments(batch)))
    return TileReport(_layer(placement, arrays[placement.site], costs) for placement in placements)


def _layer(placement: Placement, array: Crossbar, costs: TileCosts) -> TileLayerCost:
    # Bits one by one, or one pulse as long as the largest code.
    cycles = array.input_bits if costs.serial else array.input_top
    conversions_per_column = cycles if costs.serial else 1
    # Placement.calls counts every tile, and both passes of signed inputs.
    vectors = placement.calls / placement.tiles
    width = 2.0 ** (array.output_bits - costs.conversion_bits)
    converted = placement.calls * array.columns * conversions_per_column
    conversions = converted * float(costs.conversion) * width
    # A column collects what is sent several times before it is read out. All rows and cells of a
    # tile take part, whether a weight is there or not.
    sent = placement.calls * array.sends
    drivers = sent * cycles * array.rows * float(costs.driver)
    cells = sent * cycles * array.rows * array.columns * 2 * float(costs.cell)
    # Counts of further row tiles, and of bits sent before, are added to what is there.
    row_tiles = math.ceil(placement.rows / array.rows)
    partial = max(row_tiles * conversions_per_column - 1, 0) / (row_tiles * conversions_per_column)
    energy = conversions + drivers + cells + converted * partial * float(costs.addition)
    # Columns wait for the tile's converters, which take one after the other.
    reading = math.ceil(array.columns / costs.converters) * float(costs.conversion_time)
    driving = float(costs.cycle) * array.sends
    # Serial inputs: a bit is sent while the one before is read. A pulse ends before it is read.
    vector = cycles * max(driving, reading) if costs.serial else cycles * driving + reading
    slower = reading > driving if costs.serial else reading > cycles * driving
    products = vectors / (2 if array.signed else 1)
    # What the layer computes, by which its converters' work is worth it.
    operations = 2 * placement.rows * placement.columns * placement.groups * products
    return TileLayerCost(
        placement.site,
        energy,
        vector * vectors,
        conversions / energy,
        drivers / energy,
        cells / energy,
        operations,
        "conversions" if slower else "cycles",
        operations / converted,
    )
