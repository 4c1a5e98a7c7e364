"""Analog noise: what imprecise hardware does to a network's values.

Models that draw anew in every call: `Additive`, `Multiplicative`, `Mixed`, `UniformNoise`,
`Dropout`; rounding, `Quantization`; models of one device, the same in every call: `Drift`,
`Telegraph`, `Mismatch`; weights in memory cells as they were measured, `PhaseChange`,
`ResistiveRAM`, `ChargeTrap`, `StaticRAM`, or by your numbers, `ProgrammedCell`; `Repeated`, the
mean of several executions; `ReadOut`, what hardware was seen to do. `noisy` applies any of them,
and any object with a method `perturb(key, x)`, at chosen layers; `monte_carlo` draws several times.
Where noise enters an analog computation:

```python
from jaxeff.nn import small_classifier
from jaxeff.noise import Additive, noisy, slots

f, params, (x, y) = small_classifier()
noisy(f, {"*:linear": Additive(0.1, at="weights")})               # weight read-out
noisy(f, {"*:linear": Additive(0.1)})                             # multiply-accumulate
noisy(f, {"*:elementwise": Additive(0.1)})                        # activation
noisy(f, {site: Additive(0.1) for site in slots(f, params, x)})   # all slots of Klein's thesis
```

Noise in training, in evaluation or in both is two functions of two specs, made from one model: one
is what the loss calls, the other, or `f`, what the score calls.
"""

from jaxeff.noise._noisy import monte_carlo as monte_carlo
from jaxeff.noise._noisy import noisy as noisy
from jaxeff.noise._noisy import perturbed_inputs as perturbed_inputs
from jaxeff.noise._noisy import perturbs_layer as perturbs_layer
from jaxeff.noise._walking import slots as slots
from jaxeff.noise._walking import walking_noise as walking_noise
from jaxeff.noise.models import Additive as Additive
from jaxeff.noise.models import ChargeTrap as ChargeTrap
from jaxeff.noise.models import Drift as Drift
from jaxeff.noise.models import Dropout as Dropout
from jaxeff.noise.models import MemoryCell as MemoryCell
from jaxeff.noise.models import Mismatch as Mismatch
from jaxeff.noise.models import Mixed as Mixed
from jaxeff.noise.models import MomentNoise as MomentNoise
from jaxeff.noise.models import Multiplicative as Multiplicative
from jaxeff.noise.models import Noise as Noise
from jaxeff.noise.models import PhaseChange as PhaseChange
from jaxeff.noise.models import ProgrammedCell as ProgrammedCell
from jaxeff.noise.models import Quantization as Quantization
from jaxeff.noise.models import ReadOut as ReadOut
from jaxeff.noise.models import Repeated as Repeated
from jaxeff.noise.models import ResistiveRAM as ResistiveRAM
from jaxeff.noise.models import SiteNoise as SiteNoise
from jaxeff.noise.models import StaticRAM as StaticRAM
from jaxeff.noise.models import Telegraph as Telegraph
from jaxeff.noise.models import UniformNoise as UniformNoise
