"""Hardening: training that prepares a network for analog noise.

```python
import functools

import jax
import optax

from jaxeff import hardening, noisy, quantized
from jaxeff.nn import small_classifier
from jaxeff.noise import Additive
from jaxeff.training import cross_entropy, fit

f, params, data = small_classifier()
adam, ramp = optax.adam(1e-2), optax.linear_schedule(0.0, 1.0, 16)

def train(loss, optimizer=adam):
    return fit(jax.random.key(0), loss, params, data, optimizer=optimizer, epochs=2, batch_size=32)

def noise_at(sigma, along=None):
    return cross_entropy(noisy(f, {"*": Additive(sigma, along=along)}), keyed=True)

train(noise_at(0.5))                                                    # noisy training
train(hardening.incremental_noise(noise_at, ramp)(0.5))                       # growing noise
noise_per_image = functools.partial(noise_at, along="sample")
train(hardening.variance_aware(noise_per_image)(hardening.VariableLevel(0.5, 0.2)))          # VANT
teacher = functools.partial(f, train(cross_entropy(f)).params)
g = noisy(f, {"*": Additive(0.5)})
train(hardening.distilled(g, teacher, keyed=True))                      # a clean teacher
train(noise_at(0.5), hardening.sharpness_aware(adam, rho=0.5))          # SAM
train(noise_at(0.5), optax.chain(adam, hardening.clamped(-1, 1)))       # bounded weights
g = quantized(f, hardening.relu_quantization(4, last="fc2", scale=0.5))
train(cross_entropy(g))                                                 # quantization-aware
```

Everything is a loss, an optimizer or a spec, so that all of it combines.
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
