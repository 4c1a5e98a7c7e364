"""Sharpness-aware minimization (SAM), plain and adaptive, through `optax.contrib.sam`.

```python
import jax
import optax

from jaxeff.hardening import sharpness_aware
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit

f, params, data = small_classifier()
adaptive = sharpness_aware(optax.adam(1e-2), rho=0.5, adaptive=True)
loss = cross_entropy(f)
fit(jax.random.key(0), loss, params, data, optimizer=adaptive, epochs=2, batch_size=32)
```

Each step takes the gradient where the loss is worst nearby: at w + e, with

    e = rho T^2 g / |T g|,    T = 1 (SAM) or |w| + eta (adaptive SAM, elementwise)

Sharp edges: a step costs two gradients. Both see the same mini-batch and the same noise.

Source: Foret et al., arXiv:2010.01412; Kwon et al., "ASAM", arXiv:2102.11600.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import sam

from jaxeff.core import check_number, non_negative, validate, widened


@validate(rho=non_negative, eta=non_negative)
def sharpness_aware(
    optimizer: optax.GradientTransformation,
    rho: float,
    *,
    adaptive: bool = False,
    eta: float = 0.01,
) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimizer so that it uses the gradient at the worst point nearby.

    Args:
        optimizer: Takes the actual step, from the unperturbed parameters.
        rho: Radius of the neighbourhood: in parameter units, or relative where adaptive.
        adaptive: Whether the neighbourhood scales with each parameter's magnitude.
        eta: Added to that magnitude.

    Returns:
        An optimizer whose `update` needs `params` and `grad_fn(params, step)`, which
        `jaxeff.training` passes.

    Raises:
        ValueError: `rho` or `eta` is negative, NaN or infinite.
    """
    check_number("rho", rho, low=0)
    check_number("eta", eta, low=0)

    def descend(grads: Any, params: Any) -> Any:
        scales = jax.tree.map(lambda w: jnp.abs(w) + eta if adaptive else jnp.ones_like(w), params)
        # T g, whose norm is in the denominator; multiplied by T once more below.
        steep = jax.tree.map(jnp.multiply, scales, grads)
        norm = optax.tree.norm(jax.tree.map(widened, steep))
        # At a stationary point there is no direction: any divisor makes the step zero.
        length = rho / jnp.where(norm > 0, norm, 1)
        # A descent, as optimizers return one; `sam` turns it round.
        return jax.tree.map(
            lambda t, s: (-length * widened(t) * widened(s)).astype(s.dtype), scales, steep
        )

    # Opaque: `sam` evaluates the second gradient itself, so that an update is a whole step and a
    # schedule counts it once.
    worst = sam(optimizer, optax.stateless(descend), sync_period=2, opaque_mode=True)

    def update(
        updates: Any, state: Any, params: Any = None, *, grad_fn: Any = None, **others: Any
    ) -> tuple[Any, Any]:
        del others  # for other parts of a chain; `sam` refuses them
        return worst.update(updates, state, params, grad_fn=grad_fn)

    return optax.GradientTransformationExtraArgs(worst.init, update)
