"""Analog hardware: crossbars as a transform, models learnt from a chip's answers, training for it.

```python
import jax
from jaxeff.analog_hardware import Chip, Crossbar, analog, in_the_loop
from jaxeff.nn import small_classifier
f, params, (x, y) = small_classifier()
spec, x = {"fc*:linear": Crossbar(gain=0.004)}, x - x.min()                # pulses have no sign
logits = analog(f, spec)(jax.random.key(0), params, x)                     # an ideal array
logits = in_the_loop(f, spec, Chip(3))(jax.random.key(0), params, x)       # a (synthetic) chip
```

`analog` runs layers on tiles of `Crossbar`s; `partition` says how they lie there,
`calibrate_ranges` what codes stand for; `read_out` hands the noise to `jaxeff.moments`. `Chip` is a
synthetic chip, known through integer codes alone, and `CircuitChip` one given by its circuits'
equations in time; your own is a Python callable. `characterize` measures either; `fit_linear`,
`fit_columnar` and `fit_white_box` model it, and `fidelity` says how well. `order_effect` and
`fit_sequence` ask whether order matters; networks can be trained through each of these models.
`in_the_loop` trains with the chip itself, `growing_noise` with a model's; `train_for_chip` is the
whole recipe, and `compensate_drift` recalibrates. `pulsed` and `tiki_taka` are optimizers whose
weights are cells that pulses change.

Source: Klein's thesis, chapter 5; Klein et al., "Towards addressing noise and static variations of
analog computations using efficient retraining" (2021); Kuhn et al., arXiv:2309.14292.
"""

from jaxeff.analog_hardware._chip import PUBLISHED_PHYSICS as PUBLISHED_PHYSICS
from jaxeff.analog_hardware._chip import Chip as Chip
from jaxeff.analog_hardware._chip import Hardware as Hardware
from jaxeff.analog_hardware._chip import Physics as Physics
from jaxeff.analog_hardware._chip import Query as Query
from jaxeff.analog_hardware._circuit import Circuit as Circuit
from jaxeff.analog_hardware._circuit import CircuitChip as CircuitChip
from jaxeff.analog_hardware._crossbar import Correction as Correction
from jaxeff.analog_hardware._crossbar import Crossbar as Crossbar
from jaxeff.analog_hardware._crossbar import Linear as Linear
from jaxeff.analog_hardware._crossbar import TileModel as TileModel
from jaxeff.analog_hardware._crossbar import Wires as Wires
from jaxeff.analog_hardware._mapping import Partition as Partition
from jaxeff.analog_hardware._mapping import Placement as Placement
from jaxeff.analog_hardware._mapping import calibrate_ranges as calibrate_ranges
from jaxeff.analog_hardware._mapping import partition as partition
from jaxeff.analog_hardware._mapping import read_out as read_out
from jaxeff.analog_hardware._measurements import Characterization as Characterization
from jaxeff.analog_hardware._measurements import Design as Design
from jaxeff.analog_hardware._measurements import Events as Events
from jaxeff.analog_hardware._measurements import Fidelity as Fidelity
from jaxeff.analog_hardware._measurements import OrderEffect as OrderEffect
from jaxeff.analog_hardware._measurements import characterize as characterize
from jaxeff.analog_hardware._measurements import fidelity as fidelity
from jaxeff.analog_hardware._measurements import measure_events as measure_events
from jaxeff.analog_hardware._measurements import order_effect as order_effect
from jaxeff.analog_hardware._products import analog as analog
from jaxeff.analog_hardware._pulses import CAPACITOR as CAPACITOR
from jaxeff.analog_hardware._pulses import ECRAM as ECRAM
from jaxeff.analog_hardware._pulses import RERAM as RERAM
from jaxeff.analog_hardware._pulses import RPU as RPU
from jaxeff.analog_hardware._pulses import PulsedDevice as PulsedDevice
from jaxeff.analog_hardware._pulses import pulsed as pulsed
from jaxeff.analog_hardware._pulses import tiki_taka as tiki_taka
from jaxeff.analog_hardware._sequence import SequenceModel as SequenceModel
from jaxeff.analog_hardware._sequence import fit_sequence as fit_sequence
from jaxeff.analog_hardware._tile_costs import TileCosts as TileCosts
from jaxeff.analog_hardware._tile_costs import TileLayerCost as TileLayerCost
from jaxeff.analog_hardware._tile_costs import TileReport as TileReport
from jaxeff.analog_hardware._tile_costs import tile_costs as tile_costs
from jaxeff.analog_hardware._training import ForChip as ForChip
from jaxeff.analog_hardware._training import Reference as Reference
from jaxeff.analog_hardware._training import compensate_drift as compensate_drift
from jaxeff.analog_hardware._training import growing_noise as growing_noise
from jaxeff.analog_hardware._training import in_the_loop as in_the_loop
from jaxeff.analog_hardware._training import reference as reference
from jaxeff.analog_hardware._training import train_for_chip as train_for_chip
from jaxeff.analog_hardware._training import with_model as with_model
from jaxeff.analog_hardware._training import with_noise_level as with_noise_level
from jaxeff.analog_hardware._white_box import Columnar as Columnar
from jaxeff.analog_hardware._white_box import LinearFit as LinearFit
from jaxeff.analog_hardware._white_box import ReadOutNoise as ReadOutNoise
from jaxeff.analog_hardware._white_box import Splines as Splines
from jaxeff.analog_hardware._white_box import WhiteBox as WhiteBox
from jaxeff.analog_hardware._white_box import fit_columnar as fit_columnar
from jaxeff.analog_hardware._white_box import fit_linear as fit_linear
from jaxeff.analog_hardware._white_box import fit_noise as fit_noise
from jaxeff.analog_hardware._white_box import fit_splines as fit_splines
from jaxeff.analog_hardware._white_box import fit_white_box as fit_white_box
from jaxeff.noise import ReadOut as ReadOut
