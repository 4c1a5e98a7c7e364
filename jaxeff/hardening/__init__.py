"""Hardening: training that prepares a network for analog noise.

```python
import jax
import optax
from jaxeff import hardening, noisy
from jaxeff.nn import small_classifier
from jaxeff.noise import Additive
from jaxeff.training import cross_entropy, fit

f, params, data = small_classifier()
ramp = optax.linear_schedule(0.0, 1.0, 16)
loss_at = lambda spec: cross_entropy(noisy(f, spec), keyed=True)
loss = hardening.incremental_noise(loss_at, ramp)({"*": Additive(0.5)})        # growing noise
flat = hardening.sharpness_aware(optax.adam(1e-2), rho=0.5)                    # SAM
optimizer = optax.chain(flat, hardening.clamped(-1, 1))                        # bounded weights
fit(jax.random.key(0), loss, params, data, optimizer=optimizer, epochs=2, batch_size=32)
```

`variance_aware` noise has another level for each image, `distilled` a clean teacher, and
`relu_quantization` the settings of quantization-aware training. Everything is a loss, an optimizer
or a spec, so that all of it combines.
"""

from jaxeff.hardening._optimizers import clamped as clamped
from jaxeff.hardening._optimizers import sharpness_aware as sharpness_aware
from jaxeff.hardening._training import ALPHA as ALPHA
from jaxeff.hardening._training import THETA_PER_SIGMA as THETA_PER_SIGMA
from jaxeff.hardening._training import VariableLevel as VariableLevel
from jaxeff.hardening._training import distilled as distilled
from jaxeff.hardening._training import incremental_noise as incremental_noise
from jaxeff.hardening._training import relu_quantization as relu_quantization
from jaxeff.hardening._training import scale_levels as scale_levels
from jaxeff.hardening._training import vant as vant
from jaxeff.hardening._training import variance_aware as variance_aware
