"""Adapters: small arrays beside frozen layers, which are all that is trained.

```python
import jax
import jaxeff
import optax
from jaxeff.adapters import LoRA, init_lora, merge_lora
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit

key, (f, params, (x, y)) = jax.random.key(0), small_classifier()
spec = {"fc*": LoRA(rank=4)}
g = jaxeff.lora(f, spec)                                     # g(params, adapters, x)
adapters = init_lora(key, f, spec, params, x)
trained = fit(key, cross_entropy(lambda a, x: g(params, a, x)), adapters, (x, y),
              optimizer=optax.adam(1e-2), epochs=2, batch_size=64).params
merged = merge_lora(f, spec, params, trained, x)             # f(merged, x) is g(params, trained, x)
```
"""

from jaxeff.adapters._lora import LoRA, lora
from jaxeff.adapters._parameters import init_lora, merge_lora

__all__ = ["LoRA", "init_lora", "lora", "merge_lora"]
