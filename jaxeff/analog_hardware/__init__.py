"""Analog hardware: crossbars as a transform, models learnt from a chip's answers, training for it.

```python
import jax

from jaxeff.analog_hardware import Chip, Crossbar, analog, in_the_loop, partition
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
x = x - x.min()                                          # pulses have no sign
spec = {"fc*:linear": Crossbar(gain=0.004)}
logits = analog(f, spec)(jax.random.key(0), params, x)             # an ideal array
logits = in_the_loop(f, spec, Chip(3))(jax.random.key(0), params, x)       # a (synthetic) chip
```

1. `analog` runs layers on tiles of `Crossbar`s; `partition` says how they lie there, and
   `calibrate_ranges` what codes stand for. `read_out` hands the noise to `jaxeff.moments`.
2. `Chip` is a synthetic chip, known through integer codes alone, and `CircuitChip` one given by its
   circuits' equations in time; your own is a Python callable.
3. `characterize` measures either; `fit_linear`, `fit_columnar` and `fit_white_box` model it, and
   `fidelity` says how well. `order_effect` and `fit_sequence` ask whether order matters; networks
   can be trained through each of these models.
4. `in_the_loop` trains with the chip itself, `growing_noise` with a model's; `train_for_chip` is
   the whole recipe. `compensate_drift` recalibrates.

Source: Klein's thesis, chapter 5; Klein et al., "Towards addressing noise and static variations of
analog computations using efficient retraining" (2021); Kuhn et al., arXiv:2309.14292.
"""

from jaxeff.analog_hardware._chip import PUBLISHED_PHYSICS, Chip, Hardware, Physics, Query
from jaxeff.analog_hardware._circuit import Circuit, CircuitChip
from jaxeff.analog_hardware._crossbar import Correction, Crossbar, Linear, TileModel, Wires
from jaxeff.analog_hardware._mapping import (
    Partition,
    Placement,
    calibrate_ranges,
    partition,
    read_out,
)
from jaxeff.analog_hardware._measurements import (
    Characterization,
    Design,
    Events,
    Fidelity,
    OrderEffect,
    characterize,
    fidelity,
    measure_events,
    order_effect,
)
from jaxeff.analog_hardware._products import analog
from jaxeff.analog_hardware._sequence import SequenceModel, fit_sequence
from jaxeff.analog_hardware._tile_costs import TileCosts, TileLayerCost, TileReport, tile_costs
from jaxeff.analog_hardware._training import (
    ForChip,
    Reference,
    compensate_drift,
    growing_noise,
    in_the_loop,
    reference,
    train_for_chip,
    with_model,
    with_noise_level,
)
from jaxeff.analog_hardware._white_box import (
    Columnar,
    LinearFit,
    ReadOutNoise,
    Splines,
    WhiteBox,
    fit_columnar,
    fit_linear,
    fit_noise,
    fit_splines,
    fit_white_box,
)
from jaxeff.noise import ReadOut

__all__ = [
    "PUBLISHED_PHYSICS",
    "Characterization",
    "Chip",
    "Circuit",
    "CircuitChip",
    "Columnar",
    "Correction",
    "Crossbar",
    "Design",
    "Events",
    "Fidelity",
    "ForChip",
    "Hardware",
    "Linear",
    "LinearFit",
    "OrderEffect",
    "Partition",
    "Physics",
    "Placement",
    "Query",
    "ReadOut",
    "ReadOutNoise",
    "Reference",
    "SequenceModel",
    "Splines",
    "TileCosts",
    "TileLayerCost",
    "TileModel",
    "TileReport",
    "WhiteBox",
    "Wires",
    "analog",
    "calibrate_ranges",
    "characterize",
    "compensate_drift",
    "fidelity",
    "fit_columnar",
    "fit_linear",
    "fit_noise",
    "fit_sequence",
    "fit_splines",
    "fit_white_box",
    "growing_noise",
    "in_the_loop",
    "measure_events",
    "order_effect",
    "partition",
    "read_out",
    "reference",
    "tile_costs",
    "train_for_chip",
    "with_model",
    "with_noise_level",
]
