"""ODIN: the softmax at a high temperature, of inputs moved towards their predicted class.

```python
import jax
from jaxeff.nn import small_classifier
from jaxeff.uncertainty import odin

f, params, (x, y) = small_classifier()
scores = jax.jit(odin(f, temperature=1000.0, step=0.0014))(params, x)
```

It costs a pass backward to the inputs.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.core import function_of_form, non_negative, positive, validate
from jaxeff.uncertainty.domain_scores._logits import msp


@validate(f=function_of_form("f(params, x)"), temperature=positive, step=non_negative)
def odin(
    f: Callable[..., Float[Array, "batch classes"]],
    temperature: float | Float[Array, ""] = 1000.0,
    step: float | Float[Array, ""] = 0.0014,
) -> Callable[..., Float[Array, " batch"]]:
    """Makes a function score its inputs.

    Liang, Li, Srikant, "Enhancing The Reliability of Out-of-distribution Image Detection in
    Neural Networks", ICLR 2018, arXiv 1706.02690, eq. 1 and 2.

    Args:
        f: A pure function such as `f(params, x)`, its inputs last.
        temperature: What logits are divided by.
        step: How far each entry of an input is moved, in units of the inputs.

    Returns:
        A function of the same arguments, with the score of `msp`. It jits, vmaps and deploys.
    """

    def g(*args: Any) -> Array:
        *others, x = args

        def loss(x: Array) -> Array:
            scaled = f(*others, x) / temperature
            # Of the predicted class, whose logit is the largest.
            return -jax.nn.log_softmax(scaled).max(-1).sum()

        # As the authors' code has it, a slope of zero counts as a rising one.
        direction = jnp.where(jax.grad(loss)(x) >= 0, 1.0, -1.0).astype(x.dtype)
        return msp(f(*others, x - step * direction) / temperature)

    return g
