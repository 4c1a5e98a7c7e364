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

from jaxeff.pruning.sparsity._fitted import kept_weights as kept_weights
from jaxeff.pruning.sparsity._fitted import log_variances as log_variances
from jaxeff.pruning.sparsity._fitted import optimal_brain_surgeon as optimal_brain_surgeon
from jaxeff.pruning.sparsity._fitted import variational_dropout as variational_dropout
from jaxeff.pruning.sparsity._fitted import wanda as wanda
from jaxeff.pruning.sparsity._masks import FixedMask as FixedMask
from jaxeff.pruning.sparsity._masks import Magnitude as Magnitude
from jaxeff.pruning.sparsity._masks import NofM as NofM
from jaxeff.pruning.sparsity._masks import RandomMask as RandomMask
from jaxeff.pruning.sparsity._masks import Sparse as Sparse
from jaxeff.pruning.sparsity._masks import Surgery as Surgery
from jaxeff.pruning.sparsity._masks import cubic_schedule as cubic_schedule
from jaxeff.pruning.sparsity._masks import largest_mask as largest_mask
