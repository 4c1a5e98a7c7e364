"""Optimizers that leave a posterior behind: IVON by natural gradients, SWAG of the way it took.

```python
import jax
from jaxeff.bayes import ivon, ivon_posterior, predict
from jaxeff.nn import small_classifier
from jaxeff.training import cross_entropy, fit

key, (f, params, (x, y)) = jax.random.key(0), small_classifier()
optimizer = ivon(key, 0.3, len(x), decay=0.999)
result = fit(key, cross_entropy(f), params, (x, y), optimizer=optimizer, epochs=5, batch_size=32)
posterior = ivon_posterior(result.params, result.opt_state)    # a Gaussian per weight
logits = predict(key, f, posterior, x, samples=10)
```

Sharp edges of `ivon`:
    It takes the gradient elsewhere than at the parameters, by the `grad_fn` that `fit` hands to
    optimizers. In a loop of one's own: `update(grads, state, params, grad_fn=lambda p, _: grads of
    p)`; `grads` are not used.
    The loss is a mean over examples. Curvature is averaged over `1 / (1 - decay)` updates: fewer
    leave it at its start.
    Draws are a function of the key and of the number of the update.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxeff import core
from jaxeff.bayes.posteriors import named_leaves, with_random
from jaxeff.bayes.variational import CorrelatedPosterior, low_rank_posterior
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


class IVONOptions(TypedDict, total=False):
    """Numbers of the algorithm of `ivon`; `IVONSettings` has their meaning and defaults."""

    clip: float | None
    curvature: float
    decay: float
    momentum: float
    samples: int
    weight_decay: float


@dataclass(frozen=True, kw_only=True)
class IVONSettings:
    """Numbers of the algorithm of `ivon`.

    Attributes:
        clip: Largest size of an entry of the preconditioned gradient, or None.
        curvature: Curvature to start with.
        decay: Share of the past in averaged curvature.
        momentum: Share of the past in averaged gradients.
        samples: Draws of the weights in each update.
        weight_decay: Precision of the normal prior over the effective sample size.
    """

    clip: float | None = None
    curvature: float = 1.0
    decay: float = 0.99999
    momentum: float = 0.9
    samples: int = 1
    weight_decay: float = 1e-4


@core.validate(
    learning_rate=core.any_of(core.function_of_form("learning_rate(step)"), core.positive),
    examples=core.positive,
    weight_decay=core.positive,
    momentum=core.probability,
    decay=core.probability,
    curvature=core.positive,
    clip=core.non_negative,
    samples=core.static_integer(),
)
@core.forwards(IVONSettings, IVONOptions)
def ivon(
    key: PRNGKeyArray,
    learning_rate: float | optax.Schedule,
    examples: float,
    **options: Unpack[IVONOptions],
) -> optax.GradientTransformationExtraArgs:
    """Makes the improved variational online Newton method.

    Args:
        key: Random key of the draws.
        learning_rate: Step of the mean where the curvature is the one it starts with, or a schedule
            of the update.
        examples: Effective sample size, that of the data; more makes a colder posterior.
        **options: `weight_decay`, the precision of the normal prior over the effective sample size,
            1e-4. `momentum`, the share of the past in averaged gradients, 0.9; `decay`, that in
            averaged curvature, 0.99999. `curvature`, the one to start with, 1: the posterior then
            has variance `1 / (examples * (curvature + weight_decay))`. `clip`, the largest size of
            an entry of the preconditioned gradient, or None. `samples`, the draws of the weights in
            each update, 1.

    Returns:
        The transformation; `ivon_posterior` reads the posterior from its state.
    """
    settings = IVONSettings(**options)

    def init(params: Any) -> IVONState:
        return IVONState(
            jnp.zeros((), jnp.int32),
            optax.tree.zeros_like(params),
            optax.tree.full_like(params, settings.curvature),
            jnp.asarray(examples, jnp.float32),
            jnp.asarray(settings.weight_decay, jnp.float32),
        )

    def update(
        updates: Any, state: IVONState, params: Any = None, *, grad_fn: Any = None, **extra: Any
    ) -> tuple[Any, IVONState]:
        del updates, extra
        if params is None or grad_fn is None:
            raise ValueError(
                "ivon takes the gradient at draws of the weights: pass params and "
                "grad_fn=lambda params, _: gradient, as jaxeff.training.fit does"
            )
        draws = jax.random.split(jax.random.fold_in(key, state.step), settings.samples)
        estimates = [_estimate(draw, grad_fn, params, state) for draw in draws]
        gradient, bent = jax.tree.map(lambda *each: sum(each) / settings.samples, *estimates)
        new = _with_averages(state, gradient, bent, settings)
        rate = learning_rate(state.step) if callable(learning_rate) else learning_rate
        # So that a rate means as much as one of gradient descent at the start.
        rate = jnp.asarray(rate, jnp.float32) * (settings.curvature + settings.weight_decay)
        unbiased = 1 - settings.momentum ** new.step.astype(jnp.float32)
        return _newton_updates(params, new, rate, unbiased, settings.clip), new

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


def _with_averages(state: IVONState, gradient: Any, bent: Any, settings: IVONSettings) -> IVONState:
    """Moves the averages of gradients and of curvature by an estimate of both."""
    momentum, decay = settings.momentum, settings.decay

    def averaged(h: Array, b: Array) -> Array:
        # The last term, second order in the step, keeps h + d positive whatever the estimate.
        change = (1 - decay) * (h - b)
        return h - change + change**2 / (2 * (h + _as(state.weight_decay, h)))

    return state._replace(
        step=state.step + 1,
        momentum=jax.tree.map(
            lambda m, g: momentum * m + (1 - momentum) * g, state.momentum, gradient
        ),
        curvature=jax.tree.map(averaged, state.curvature, bent),
    )


def _newton_updates(
    params: Any, state: IVONState, rate: Array, unbiased: Array, clip: float | None
) -> Any:
    """Divides gradients by the curvature; both are averages, of which `unbiased` corrects one."""

    # The average of gradients begins at zero, as Adam's does, hence `unbiased`. The prior's pull,
    # d * w, is no part of it.
    def move(w: Array, g: Array, h: Array) -> Array:
        d = _as(state.weight_decay, w)
        newton = (g / _as(unbiased, w) + d * w) / (h + d)
        newton = newton if clip is None else jnp.clip(newton, -clip, clip)
        return -_as(rate, w) * newton

    return jax.tree.map(move, params, state.momentum, state.curvature)


def _stds(state: IVONState) -> Any:
    def std(h: Array) -> Array:
        return 1 / jnp.sqrt(_as(state.examples, h) * (h + _as(state.weight_decay, h)))

    return jax.tree.map(std, state.curvature)


def _as(number: Array, like: Array) -> Array:
    return number.astype(like.dtype)


@core.validate()
def ivon_posterior(params: Any, opt_state: Any) -> Any:
    """Reads the posterior from the state of `ivon`.

    `ivon` is variational inference at the cost of Adam. An update draws weights around the mean,
    and moves mean and precision by natural gradients; the curvature is estimated from gradients
    alone, by Stein's identity (Shen et al. 2024, algorithm 1, arXiv:2402.17641). With the effective
    sample size `N`, a weight decay `d` and the averaged curvature `h` the posterior is
    `Normal(mean, 1 / (N (h + d)))`; the prior's variance is `1 / (N d)`.

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
    matching = [each for each in states if isinstance(each, kind)]
    if len(matching) != 1:
        raise ValueError(
            f"{name}_posterior: the state holds {len(matching)} of {name}, not one; pass the "
            f"`opt_state` of a run whose optimizer is, or holds, jaxeff.bayes.{name}"
        )
    return matching[0]


class SWAGState(NamedTuple):
    """State of `swag`.

    Attributes:
        inner: The wrapped optimizer's.
        step: Updates made so far.
        seen: How often parameters have been looked at.
        mean: Their mean, as one vector.
        square: The mean of their squares.
        deviations: The last deviations from the mean so far, a ring.
    """

    inner: Any
    step: Int[Array, ""]
    seen: Int[Array, ""]
    mean: Float[Array, " size"]
    square: Float[Array, " size"]
    deviations: Float[Array, "rank size"]


@core.validate(
    start=core.static_integer(0), every=core.static_integer(), rank=core.static_integer(2)
)
def swag(
    optimizer: optax.GradientTransformation, *, start: int, every: int, rank: int = 20
) -> optax.GradientTransformationExtraArgs:
    """Wraps an optimizer so that it remembers where it has been.

    ```python
    import jax, optax
    from jaxeff.bayes import swag
    from jaxeff.nn import small_classifier
    from jaxeff.training import cross_entropy, fit

    f, params, data = small_classifier()
    optimizer = swag(optax.sgd(0.05, momentum=0.9), start=40, every=8)     # for `swag_posterior`
    fit(jax.random.key(0), cross_entropy(f), params, data,
        optimizer=optimizer, epochs=10, batch_size=32)
    ```

    Args:
        optimizer: Any optax optimizer; what it does stays the same.
        start: Updates before parameters are looked at.
        every: Updates from one look to the next, as those of an epoch.
        rank: Deviations that are kept, at least 2.

    Returns:
        The optimizer; `swag_posterior` reads the posterior from its state.
    """
    inner = optax.with_extra_args_support(optimizer)

    def init(params: Any) -> SWAGState:
        size = _vector(params)
        zero = jnp.zeros((), jnp.int32)
        return SWAGState(
            inner.init(params), zero, zero, jnp.zeros_like(size), jnp.zeros_like(size),
            jnp.zeros((rank, *size.shape), size.dtype),
        )  # fmt: skip

    def update(
        updates: Any, state: SWAGState, params: Any = None, **extra: Any
    ) -> tuple[Any, SWAGState]:
        if params is None:
            raise ValueError("swag looks at the parameters: pass them to update")
        moved, after = inner.update(updates, state.inner, params, **extra)
        step = state.step + 1
        looks = (step > start) & ((step - start) % every == 0)
        vector = _vector(optax.apply_updates(params, moved))
        seen = state.seen + 1
        share = (1 / seen).astype(vector.dtype)
        mean = state.mean + share * (vector - state.mean)
        square = state.square + share * (vector**2 - state.square)
        # Of the mean so far, as in the source: nothing is kept that a later mean could correct.
        deviations = state.deviations.at[state.seen % rank].set(vector - mean)
        updated = (seen, mean, square, deviations)
        kept = jax.tree.map(lambda new, old: jnp.where(looks, new, old), updated, state[2:])
        return moved, SWAGState(after, step, *kept)

    return optax.GradientTransformationExtraArgs(init, update)


@core.validate()
def swag_posterior(params: Any, opt_state: Any) -> CorrelatedPosterior:
    """Reads the posterior from the state of `swag`.

    `swag` makes a Gaussian around the way of an optimizer:

    ```python
    import jax
    import optax
    from jaxeff.bayes import predict, swag, swag_posterior
    from jaxeff.nn import small_classifier
    from jaxeff.training import cross_entropy, fit

    key, (f, params, (x, y)) = jax.random.key(0), small_classifier()
    optimizer = swag(optax.sgd(0.05, momentum=0.9), start=40, every=8)
    run = {"optimizer": optimizer, "epochs": 10, "batch_size": 32}
    result = fit(key, cross_entropy(f), params, (x, y), **run)
    posterior = swag_posterior(result.params, result.opt_state)
    logits = predict(key, f, posterior, x, samples=10)
    ```

    Parameters are looked at every so many updates after the start: their mean, their variances, and
    how the last ones deviated from the mean so far. Half of the covariance is diagonal, half of the
    rank of those deviations (Maddox et al. 2019, arXiv:1902.02476, algorithm 1). The mean alone is
    stochastic weight averaging.

    Sharp edges:
        The spread is that of the optimizer: a constant learning rate that is large enough to move
        about an optimum makes it, a decayed one makes none.
        Batch statistics belong to one set of parameters: `jaxeff.training.converge_batch_stats` of
        the mean, or a function without.
        Memory is that of `rank + 2` networks.

    Args:
        params: The trained parameters: structure, shapes and dtypes.
        opt_state: The state of the optimizer, also of a chain that holds `swag`.

    Returns:
        A Gaussian of low rank and diagonal.

    Raises:
        ValueError: There is no `swag` in it, or it has looked at parameters fewer than twice.
    """
    state = state_of(SWAGState, "swag", opt_state)
    rank = len(state.deviations)
    if core.is_concrete(state.seen) and int(state.seen) < 2:
        raise ValueError(
            f"swag_posterior: parameters were looked at {int(state.seen)} times: train longer, "
            "start earlier or look more often"
        )
    kept = jnp.minimum(state.seen, rank).astype(state.mean.dtype)
    # Not below a millionth of the mean square: rounding would leave zero, or less.
    variance = jnp.maximum(state.square - state.mean**2, 1e-12 + 1e-6 * state.square)
    factor = state.deviations.T / jnp.sqrt(2 * (kept - 1))
    mean = with_random(params, ravel_pytree(named_leaves(params))[1](state.mean))
    return low_rank_posterior(mean, jnp.sqrt(variance / 2), factor)


def _vector(params: Any) -> Array:
    # By path, as guides over a vector order theirs.
    vector: Array = ravel_pytree(named_leaves(params))[0]
    return vector
