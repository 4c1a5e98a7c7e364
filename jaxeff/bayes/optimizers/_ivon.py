"""`ivon`: variational inference at the cost of Adam, as an optax transformation.

```python
import jax

from jaxeff.bayes import ivon, ivon_posterior, predict
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit

key = jax.random.key(0)
f, params, (x, y) = small_classifier()
optimizer = ivon(key, 0.3, len(x), decay=0.999)
result = fit(key, cross_entropy(f), params, (x, y), optimizer=optimizer, epochs=5, batch_size=32)
posterior = ivon_posterior(result.params, result.opt_state)    # a Gaussian per weight
logits = predict(key, f, posterior, x, samples=10)
```

An update draws weights around the mean, and moves mean and precision by natural gradients; the
curvature is estimated from gradients alone, by Stein's identity (Shen et al. 2024, algorithm 1,
arXiv:2402.17641). With the effective sample size `N`, a weight decay `d` and the averaged curvature
`h` the posterior is `Normal(mean, 1 / (N (h + d)))`; the prior's variance is `1 / (N d)`.

Sharp edges:
    It takes the gradient elsewhere than at the parameters, by the `grad_fn` that `fit` hands to
    optimizers. In a loop of one's own: `update(grads, state, params, grad_fn=lambda p, _: grads of
    p)`; `grads` are not used.
    The loss is a mean over examples. Curvature is averaged over `1 / (1 - decay)` updates: fewer
    leave it at its start.
    Draws are a function of the key and of the number of the update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff.core import (
    any_of,
    function_of_form,
    non_negative,
    positive,
    probability,
    static_integer,
    validate,
)
from jaxeff.moment_propagation import Gaussian


class IVONState(NamedTuple):
    """State of `ivon`.

    Attributes:
        step: Updates made so far.
        momentum: Averaged gradients.
        curvature: Averaged curvature of the loss, not below `-weight_decay`.
        examples: Effective sample size.
        weight_decay: Precision of the prior over the effective sample size.
    """

    step: Int[Array, ""]
    momentum: Any
    curvature: Any
    examples: Float[Array, ""]
    weight_decay: Float[Array, ""]


@validate(
    learning_rate=any_of(function_of_form("learning_rate(step)"), positive),
    examples=positive,
    weight_decay=positive,
    momentum=probability,
    decay=probability,
    curvature=positive,
    clip=non_negative,
    samples=static_integer(),
)
def ivon(
    key: PRNGKeyArray,
    learning_rate: float | optax.Schedule,
    examples: float,
    *,
    weight_decay: float = 1e-4,
    momentum: float = 0.9,
    decay: float = 0.99999,
    curvature: float = 1.0,
    clip: float | None = None,
    samples: int = 1,
) -> optax.GradientTransformationExtraArgs:
    """Makes the improved variational online Newton method.

    Args:
        key: Random key of the draws.
        learning_rate: Step of the mean where the curvature is the one it starts with, or a schedule
            of the update.
        examples: Effective sample size, that of the data; more makes a colder posterior.
        weight_decay: Precision of the normal prior over the effective sample size.
        momentum: Share of the past in averaged gradients.
        decay: Share of the past in averaged curvature.
        curvature: Curvature to start with: the posterior then has variance
            `1 / (examples * (curvature + weight_decay))`.
        clip: Largest size of an entry of the preconditioned gradient, or None.
        samples: Draws of the weights in each update.

    Returns:
        The transformation; `ivon_posterior` reads the posterior from its state.
    """

    def init(params: Any) -> IVONState:
        return IVONState(
            jnp.zeros((), jnp.int32),
            optax.tree.zeros_like(params),
            optax.tree.full_like(params, curvature),
            jnp.asarray(examples, jnp.float32),
            jnp.asarray(weight_decay, jnp.float32),
        )

    def update(
        updates: Any,
        state: IVONState,
        params: Any = None,
        *,
        grad_fn: Callable[[Any, Any], Any] | None = None,
        **extra: Any,
    ) -> tuple[Any, IVONState]:
        del updates, extra
        if params is None or grad_fn is None:
            raise ValueError(
                "ivon takes the gradient at draws of the weights: pass params and "
                "grad_fn=lambda params, _: gradient, as jaxeff.training.fit does"
            )
        draws = jax.random.split(jax.random.fold_in(key, state.step), samples)
        found = [_estimate(draw, grad_fn, params, state) for draw in draws]
        gradient, bent = jax.tree.map(lambda *each: sum(each) / samples, *found)
        mean = jax.tree.map(
            lambda m, g: momentum * m + (1 - momentum) * g, state.momentum, gradient
        )
        h = jax.tree.map(
            lambda h, b: _averaged(h, b, decay, _as(state.weight_decay, h)), state.curvature, bent
        )
        rate = learning_rate(state.step) if callable(learning_rate) else learning_rate
        # So that a rate means as much as one of gradient descent at the start.
        rate = jnp.asarray(rate, jnp.float32) * (curvature + weight_decay)
        unbiased = 1 - momentum ** (state.step + 1).astype(jnp.float32)

        def move(w: Array, g: Array, h: Array) -> Array:
            d = _as(state.weight_decay, w)
            newton = (g / _as(unbiased, w) + d * w) / (h + d)
            newton = newton if clip is None else jnp.clip(newton, -clip, clip)
            return -_as(rate, w) * newton

        moved = jax.tree.map(move, params, mean, h)
        return moved, state._replace(step=state.step + 1, momentum=mean, curvature=h)

    return optax.GradientTransformationExtraArgs(init, update)


def _estimate(
    key: PRNGKeyArray, grad_fn: Callable[[Any, Any], Any], params: Any, state: IVONState
) -> tuple[Any, Any]:
    """Computes a gradient and a curvature at a draw."""
    std = _stds(state)
    noise = optax.tree.random_like(key, params)
    drawn = jax.tree.map(lambda w, s, z: w + s * z, params, std, noise)
    gradient = grad_fn(drawn, None)
    # Stein's identity: E[g (w - mean) / variance] is the mean curvature.
    bent = jax.tree.map(lambda g, z, s: g * z / s, gradient, noise, std)
    return gradient, bent


def _averaged(h: Array, bent: Array, decay: float, weight_decay: Array) -> Array:
    # The last term, second order in the step, keeps h + d positive whatever the estimate.
    change = (1 - decay) * (h - bent)
    return h - change + change**2 / (2 * (h + weight_decay))


def _stds(state: IVONState) -> Any:
    def std(h: Array) -> Array:
        return 1 / jnp.sqrt(_as(state.examples, h) * (h + _as(state.weight_decay, h)))

    return jax.tree.map(std, state.curvature)


def _as(number: Array, like: Array) -> Array:
    return number.astype(like.dtype)


@validate()
def ivon_posterior(params: Any, opt_state: Any) -> Any:
    """Reads the posterior from the state of `ivon`.

    Args:
        params: The trained parameters, its mean.
        opt_state: The state of the optimizer, also of a chain that holds `ivon`.

    Returns:
        A pytree of `jaxeff.Gaussian` with the structure of the parameters.

    Raises:
        ValueError: There is no `ivon` in it.
    """
    state = state_of(IVONState, "ivon", opt_state)
    return jax.tree.map(lambda w, s: Gaussian(w, s**2), params, _stds(state))


def state_of(kind: Any, name: str, opt_state: Any) -> Any:
    """Finds the state of a transformation in that of an optimizer."""
    states = jax.tree.leaves(opt_state, is_leaf=lambda each: isinstance(each, kind))
    found = [each for each in states if isinstance(each, kind)]
    if len(found) != 1:
        raise ValueError(
            f"{name}_posterior: the state holds {len(found)} of {name}, not one; pass the "
            f"`opt_state` of a run whose optimizer is, or holds, jaxeff.bayes.{name}"
        )
    return found[0]
