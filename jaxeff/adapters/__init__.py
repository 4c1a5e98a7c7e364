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

Adapters are parameters like any others. A posterior, or an ensemble, may be of them alone:

```python
from jaxeff import bayes
from jaxeff.ensembles import Members

h = lambda adapters, x: g(params, adapters, x)
posterior = bayes.laplace(key, h, trained, (x, y), "*", "diag")  # independent factors
logits = jaxeff.moments(h, method="linear")(bayes.to_gaussians(posterior), x)
one = {"*/b": None}                                          # the second factors aren't random
result = bayes.svi(key, h, trained, (x, y), epochs=2, batch_size=64, prior=one)
several, members = jaxeff.ensemble(key, h, adapters, {"*": Members(3)},
                                   init=lambda key: init_lora(key, f, params, x, spec))
```

The first is Laplace-LoRA (Yang et al. 2024, arXiv 2308.13111), the second BLoB (Wang et al. 2024,
arXiv 2406.11675); the members of the last share all that comes before the first adapter.

`learner` makes a step that learns some of a network on a device, behind a body in whole numbers;
with `uncertainty.watched` it keeps watch for drift over all that it isn't told.

Sharp edge: `h` closes over the frozen weights, so each compiled program holds them as constants.
Where they are large, make them parameters that `frozen` leaves unchanged, and name the adapters in
the calls above: `prior={"frozen/*": None}`, `laplace(..., only="adapters/*")`,
`{"adapters/*": Members(3)}`.
"""

from jaxeff.adapters._learner import LearningStep as LearningStep
from jaxeff.adapters._learner import learner as learner
from jaxeff.adapters._lora import LoRA as LoRA
from jaxeff.adapters._lora import frozen as frozen
from jaxeff.adapters._lora import init_lora as init_lora
from jaxeff.adapters._lora import lora as lora
from jaxeff.adapters._lora import merge_lora as merge_lora
from jaxeff.adapters._untied import untied as untied
