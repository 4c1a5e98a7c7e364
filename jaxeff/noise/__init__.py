"""Analog noise: what imprecise hardware does to a network's values.

Models that draw anew in every call: `Additive`, `Multiplicative`, `Mixed`, `UniformNoise`,
`Dropout`; rounding, `Quantization`; models of one device, the same in every call: `Drift`,
`Telegraph`, `Mismatch`; weights in memory cells as they were measured, `PhaseChange`,
`ResistiveRAM`, `ChargeTrap`, `StaticRAM`, or by your numbers, `ProgrammedCell`; `Repeated`, the
mean of several executions; `ReadOut`, what hardware was seen to do.
`noisy` applies any of them, and any object with a method `perturb(key, x)`, at chosen layers;
`monte_carlo` draws several times. Where noise enters an analog computation:

```python
from jaxeff.nn import small_classifier
from jaxeff.noise import Additive, noisy, slots

f, params, (x, y) = small_classifier()
noisy(f, {"*:linear": Additive(0.1, at="weights")})               # weight read-out
noisy(f, {"*:linear": Additive(0.1)})                             # multiply-accumulate
noisy(f, {"*:elementwise": Additive(0.1)})                        # activation
noisy(f, {site: Additive(0.1) for site in slots(f, params, x)})   # all of the source's slots
```

Noise in training, in evaluation or in both is two functions of two specs, made from one model:

```python
train = noisy(f, {"*": Additive(0.3)})                            # what the loss calls
evaluate = noisy(f, {"*": Additive(0.5)})                         # what the score calls, or f
```
"""

from jaxeff.noise._noisy import monte_carlo, noisy, perturbed_inputs, perturbs_layer
from jaxeff.noise._walking import slots, walking_noise
from jaxeff.noise.models import (
    Additive,
    ChargeTrap,
    Drift,
    Dropout,
    MemoryCell,
    Mismatch,
    Mixed,
    MomentNoise,
    Multiplicative,
    Noise,
    PhaseChange,
    ProgrammedCell,
    Quantization,
    ReadOut,
    Repeated,
    ResistiveRAM,
    SiteNoise,
    StaticRAM,
    Telegraph,
    UniformNoise,
)

__all__ = [
    "Additive",
    "ChargeTrap",
    "Drift",
    "Dropout",
    "MemoryCell",
    "Mismatch",
    "Mixed",
    "MomentNoise",
    "Multiplicative",
    "Noise",
    "PhaseChange",
    "ProgrammedCell",
    "Quantization",
    "ReadOut",
    "Repeated",
    "ResistiveRAM",
    "SiteNoise",
    "StaticRAM",
    "Telegraph",
    "UniformNoise",
    "monte_carlo",
    "noisy",
    "perturbed_inputs",
    "perturbs_layer",
    "slots",
    "walking_noise",
]
