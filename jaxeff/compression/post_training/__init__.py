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

from jaxeff.compression.post_training._biases import correct_biases, fold_batch_norm
from jaxeff.compression.post_training._calibrate import (
    RunningRange,
    as_batches,
    calibrate,
    initial_ranges,
    running,
)
from jaxeff.compression.post_training._channels import equalize
from jaxeff.compression.post_training._clipping import clip_range
from jaxeff.compression.post_training._layerwise import (
    PostTrained,
    RoundingProblem,
    arguments,
    on_grids,
)
from jaxeff.compression.post_training._multiplication import Matrix, Multiplication, multiplications
from jaxeff.compression.post_training._rotation import rotate
from jaxeff.compression.post_training._rounding import adaround, gptq
from jaxeff.compression.post_training._scaling import awq, smooth_quant

__all__ = [
    "Matrix",
    "Multiplication",
    "PostTrained",
    "RoundingProblem",
    "RunningRange",
    "adaround",
    "arguments",
    "as_batches",
    "awq",
    "calibrate",
    "clip_range",
    "correct_biases",
    "equalize",
    "fold_batch_norm",
    "gptq",
    "initial_ranges",
    "multiplications",
    "on_grids",
    "rotate",
    "running",
    "smooth_quant",
]
