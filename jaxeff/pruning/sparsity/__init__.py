"""Single weights removed: masks as methods of `jaxeff.quantized`, stored in fewer bytes.

Nothing gets faster by it but where sparse kernels are; channels (`jaxeff.pruning`) shrink a model
for real.

```python
import jaxeff
from jaxeff.compression import Uniform
from jaxeff.nn import small_classifier
from jaxeff.pruning.sparsity import Magnitude, NofM

f, params, (x, y) = small_classifier()
sparse = jaxeff.quantized(f, {"*:linear": Magnitude(0.9), "fc2": NofM(2, 4)})
both = jaxeff.quantized(f, {"*:linear": Magnitude(0.9, values=Uniform(8))})
print(jaxeff.cost(sparse, params, x).size, jaxeff.cost(both, params, x).size)
```
"""

from jaxeff.pruning.sparsity._fitted import (
    kept_weights,
    log_variances,
    optimal_brain_surgeon,
    variational_dropout,
    wanda,
)
from jaxeff.pruning.sparsity._masks import (
    FixedMask,
    Magnitude,
    NofM,
    RandomMask,
    Sparse,
    Surgery,
    cubic_schedule,
    largest_mask,
)

__all__ = [
    "FixedMask",
    "Magnitude",
    "NofM",
    "RandomMask",
    "Sparse",
    "Surgery",
    "cubic_schedule",
    "kept_weights",
    "largest_mask",
    "log_variances",
    "optimal_brain_surgeon",
    "variational_dropout",
    "wanda",
]
