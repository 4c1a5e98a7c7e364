"""Members that disagree without being pushed: other data for each, or another prior function.

Repulsion in function space needs inputs from elsewhere. Two ways that don't:

- `bootstrap_weights`: every member sees the examples in other proportions (the bagging of Breiman
  1996, as in bootstrapped networks, Osband et al. 2016), so that heads train independently.
- `with_prior`: every member is the sum of a trained network and of a random one that is never
  trained (Osband et al. 2018, arXiv:1806.03335). Training cancels the random one where there are
  data, and nowhere else.

```python
import jax

import jaxeff
from jaxeff.ensembles import Members, bootstrap_weights, member_loss, with_prior
from jaxeff.nn import small_classifier

key = jax.random.key(0)
f, params, (x, y) = small_classifier()
h = with_prior(f, scale=1.0)
g, heads = jaxeff.ensemble(key, h, {"trained": params, "prior": params},
                           {"trained/fc2": Members(5), "prior/*": Members(5)})
data = (x, y, bootstrap_weights(key, len(x), 5))
member_loss(g)(key, heads, None, data, 0)
```

Sharp edge: weight decay acts on the random networks too; mask it there (`optax.masked`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from jaxeff.core import check_count, check_function, check_number, is_key, static_integer, validate


@validate(examples=static_integer(), members=static_integer())
def bootstrap_weights(
    key: PRNGKeyArray, examples: int, members: int
) -> Float[Array, "examples members"]:
    """Draws how often each member sees each example: Poisson numbers, scaled to mean one.

    Args:
        key: Random key.
        examples: Number of examples.
        members: Number of members.

    Returns:
        Weights, for the third part of the data of `member_loss`.
    """
    check_count("examples", examples)
    check_count("members", members)
    # The Poisson bootstrap: binomial(n, 1/n) counts tend to Poisson(1), and no example
    # needs the others.
    counts = jax.random.poisson(key, 1.0, (examples, members)).astype(jnp.float32)
    return counts / jnp.maximum(counts.mean(0, keepdims=True), 1 / examples)


@validate()
def with_prior(f: Callable[..., Any], scale: Any = 1.0) -> Callable[..., Any]:
    """Adds a random network that stays as it is to a trained one.

    Args:
        f: `f(params, *args) -> outputs`, an array; a random key may come first.
        scale: Factor of the random network's outputs.

    Returns:
        `h({"trained": params, "prior": params}, *args)`, to be given members by `ensemble`.

    Raises:
        TypeError: `f` is no function, or the scale no number.
    """
    check_function("with_prior: f", f)
    check_number("with_prior: scale", scale, 0)

    def h(*args: Any, **kwargs: Any) -> Any:
        position = next(i for i, arg in enumerate(args) if not is_key(arg))
        both = args[position]
        if not isinstance(both, dict) or both.keys() != {"trained", "prior"}:
            raise TypeError(
                'with_prior: the parameters must be {"trained": ..., "prior": ...}, each those of '
                "the network"
            )
        # The random network must not be trained: neither its parameters nor through its
        # outputs.
        prior = jax.lax.stop_gradient(both["prior"])
        ours, random = (
            f(*args[:position], params, *args[position + 1 :], **kwargs)
            for params in (both["trained"], prior)
        )
        return ours + jnp.asarray(scale, random.dtype) * jax.lax.stop_gradient(random)

    return h
