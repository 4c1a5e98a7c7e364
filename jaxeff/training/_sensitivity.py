"""Divergence of predictions under many changes of a model, in one compiled program.

Sensitivities are measured so: change one layer alone, by noise, by fewer bits, by fewer channels,
and compare the predictions with those of the model as it is. `divergences` is the loop that they
share; what a change is, is said by a function that makes the changed model from one entry of
arrays, so that nothing is read or compiled again for another change.

```python
import jax
import jax.numpy as jnp
from jaxeff.nn import small_classifier
from jaxeff.noise import Additive, noisy
from jaxeff.training import divergences

key, (f, params, (x, y)) = jax.random.key(0), small_classifier()

def changed(level):
    g = noisy(f, {"fc1": Additive(level)})
    return lambda *args: g(key, *args)

divergences(f, changed, params, x, jnp.array([0.0, 0.1, 1.0])).mean(-1)      # nats, one per level
```
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxeff.training._canonical import canonical_in_loops


def divergences(
    f: Callable[..., Any],
    changed: Callable[[Any], Callable[..., Any]],
    params: Any,
    x: Any,
    changes: Any,
    *,
    state: Any = None,
    at_once: int = 1,
) -> Float[Array, "changes ..."]:
    """Computes KL(f || f changed) of the predictions, in nats, for every change and input.

    Args:
        f: A classifier `f(params, x) -> logits`; with a state `f(params, state, x) -> (logits, new
            state)`.
        changed: Makes a function like `f` from one entry of `changes`.
        params: The parameters of `f`.
        x: Inputs, which are evaluated at once.
        changes: Arrays with a common leading axis, one entry per change.
        state: The model's state, which stays as it is.
        at_once: Number of changes evaluated side by side, by `vmap`.
    """

    def log_probs(g: Callable[..., Any]) -> Array:
        predictions = g(params, x) if state is None else g(params, state, x)
        return jax.nn.log_softmax(predictions if state is None else predictions[0])

    # Outside the loop over changes, which all compare with it.
    clean = log_probs(f)

    def divergence(change: Any) -> Float[Array, "..."]:
        # sum_c p_c (log p_c - log q_c), from log-probabilities throughout: no logarithm of
        # a rounded zero.
        return (jnp.exp(clean) * (clean - log_probs(changed(change)))).sum(-1)

    by_change: Array = map_changes(divergence, changes, at_once)
    return by_change


def map_changes(function: Callable[[Any], Any], changes: Any, at_once: int = 1) -> Any:
    """Maps a function over arrays with a common leading axis, `at_once` entries side by side.

    Numbers of each change other than `divergences` take this loop:

    ```python
    import jax
    import jax.numpy as jnp
    from jaxeff.nn import small_classifier
    from jaxeff.noise import Additive, noisy
    from jaxeff.training import map_changes

    key, (f, params, (x, y)) = jax.random.key(0), small_classifier()

    def accuracy(level):
        return (noisy(f, {"fc1": Additive(level)})(key, params, x).argmax(-1) == y).mean()

    accuracies = map_changes(accuracy, jnp.array([0.0, 0.1, 1.0]), at_once=2)    # two side by side
    assert accuracies[0] == (f(params, x).argmax(-1) == y).mean()
    ```

    Args:
        function: Function from one entry to arrays.
        changes: A pytree of arrays.
        at_once: Number of entries evaluated together by `vmap`; the groups follow each other.
    """
    count = len(jax.tree.leaves(changes)[0])
    if at_once == 1:
        # One at a time: convolutions vmapped over weights are slower, and take more memory.
        return jax.lax.map(canonical_in_loops(function, products=True), changes)
    groups = -(-count // at_once)
    # The last entry fills up the last group.
    entries = jnp.minimum(jnp.arange(groups * at_once), count - 1).reshape(groups, at_once)
    grouped = jax.tree.map(lambda leaf: jnp.asarray(leaf)[entries], changes)
    results = jax.lax.map(canonical_in_loops(jax.vmap(function), products=True), grouped)
    return jax.tree.map(lambda y: y.reshape(-1, *y.shape[2:])[:count], results)
