"""Compression without training: weights and ranges from a batch, on the program of any model.

Passes take `f, params, batch, spec` and return a function, its parameters and a spec
(`PostTrained`): each goes on with what the one before returned, `quantized` or `integer` with the
last.

```python
from jaxeff.compression import Int, calibrate, correct_biases, equalize, integer
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier()
f, params, spec = equalize(f, params, x, {"*:linear": Int(8)})
f, params, spec = correct_biases(f, params, x, spec)
f, params, spec = calibrate(f, params, x, spec)
logits = integer(f, spec)(params, x)
```
"""

from jaxeff.compression.post_training._biases import correct_biases as correct_biases
from jaxeff.compression.post_training._biases import fold_batch_norm as fold_batch_norm
from jaxeff.compression.post_training._calibrate import RunningRange as RunningRange
from jaxeff.compression.post_training._calibrate import calibrate as calibrate
from jaxeff.compression.post_training._calibrate import initial_ranges as initial_ranges
from jaxeff.compression.post_training._calibrate import ptq as ptq
from jaxeff.compression.post_training._calibrate import running as running
from jaxeff.compression.post_training._channels import equalize as equalize
from jaxeff.compression.post_training._clipping import clip_range as clip_range
from jaxeff.compression.post_training._layerwise import PostTrained as PostTrained
from jaxeff.compression.post_training._layerwise import RoundingProblem as RoundingProblem
from jaxeff.compression.post_training._layerwise import arguments as arguments
from jaxeff.compression.post_training._layerwise import on_grids as on_grids
from jaxeff.compression.post_training._multiplication import Matrix as Matrix
from jaxeff.compression.post_training._multiplication import Multiplication as Multiplication
from jaxeff.compression.post_training._multiplication import multiplications as multiplications
from jaxeff.compression.post_training._multiplication import producers as producers
from jaxeff.compression.post_training._multiplication import users as users
from jaxeff.compression.post_training._multiplication import weight_entries as weight_entries
from jaxeff.compression.post_training._rotation import rotate as rotate
from jaxeff.compression.post_training._rounding import adaround as adaround
from jaxeff.compression.post_training._rounding import gptq as gptq
from jaxeff.compression.post_training._rounding import round_weights as round_weights
from jaxeff.compression.post_training._scaling import awq as awq
from jaxeff.compression.post_training._scaling import smooth_quant as smooth_quant
