"""Optimizers that prepare a network for hardware: bounded weights, and flat minima (SAM).

Sharpness-aware minimization (SAM), plain and adaptive, is `optax.contrib.sam` for losses with keys.

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

Sharp edges:
    Clamping must come last, after the learning rate. Adding a rounded update may miss the bound by
    an ulp.
    A step of SAM costs two gradients. Both see the same mini-batch and the same noise.

References:
    Foret et al., arXiv:2010.01412; Kwon et al., "ASAM", arXiv:2102.11600.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import sam

from jaxeff.core import check_number, finite, non_negative, validate, widened


@validate(low=finite, high=finite)
def clamped(low: float, high: float) -> optax.GradientTransformation:
    """Keeps parameters between two bounds after each update.

    Weight clamping keeps parameters inside the range of an analog device.

    ```python
    import jax
    import optax

    from jaxeff.hardening import clamped

    def kernels(params):
        return jax.tree_util.tree_map_with_path(lambda path, w: "kernel" in str(path[-1]), params)

    optimizer = optax.chain(optax.adam(1e-3), clamped(-1.0, 1.0))
    optimizer = optax.chain(optax.adam(1e-3), optax.masked(clamped(-1.0, 1.0), kernels))
    state = optimizer.init({"kernel": jax.numpy.ones((2, 3)), "bias": jax.numpy.zeros(3)})
    ```

    It is what `optax.keep_params_nonnegative` is for non-negative weights: an update that would
    leave the box ends on its boundary. Noise grows weights (that is how networks drown additive
    noise), so without a bound a trained network may need more than a device has.

    Args:
        low: The smallest value allowed.
        high: The largest value allowed.

    Returns:
        A stateless transformation of updates; its `update` needs the parameters.

    Raises:
        ValueError: A bound is NaN, or there is nothing between them.
    """
    check_number("low", low, finite=False)
    check_number("high", high, low=low, finite=False)

    def update(updates: Any, params: Any) -> Any:
        # What is clipped is the sum: an update within the bounds may still leave them.
        after = optax.tree.clip(optax.apply_updates(params, updates), low, high)
        return jax.tree.map(lambda new, old: new - old, after, params)

    return optax.stateless(update)


@validate(rho=non_negative, eta=non_negative)
def sharpness_aware(
    optimizer: optax.GradientTransformation,
    rho: float,
    *,
    adaptive: bool = False,
    eta: float = 0.01,
) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimizer so that it uses the gradient at the worst point nearby.

    Each step takes the gradient where the loss is worst nearby: at w + e, with

        e = rho T^2 g / |T g|,    T = 1 (SAM) or |w| + eta (adaptive SAM, elementwise)

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
