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
adapters = init_lora(key, f, params, x, spec)
trained = fit(key, cross_entropy(lambda a, x: g(params, a, x)), adapters, (x, y),
              optimizer=optax.adam(1e-2), epochs=2, batch_size=64).params
merged = merge_lora(f, params, trained, x, spec)             # f(merged, x) is g(params, trained, x)
```

`LoRA` has posteriors and ensembles of adapters. `learner` makes a step that learns some of a
network on a device, behind a body in whole numbers; with `uncertainty.watched` it keeps watch for
drift over all that it isn't told.
"""

from jaxeff.adapters._learner import LearningStep as LearningStep
from jaxeff.adapters._learner import learner as learner
from jaxeff.adapters._lora import LoRA as LoRA
from jaxeff.adapters._lora import frozen as frozen
from jaxeff.adapters._lora import init_lora as init_lora
from jaxeff.adapters._lora import lora as lora
from jaxeff.adapters._lora import merge_lora as merge_lora
from jaxeff.adapters._untied import untied as untied
