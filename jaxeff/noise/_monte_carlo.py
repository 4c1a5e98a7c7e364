"""`monte_carlo`: several draws of a noisy function, such as Monte Carlo dropout.

```python
import jax

import jaxeff
from jaxeff.nn import small_classifier
from jaxeff.noise import Dropout, monte_carlo
from jaxeff.uncertainty import decompose_logits

f, params, (x, y) = small_classifier()
g = monte_carlo(jaxeff.noisy(f, {"relu*": Dropout(0.15)}), 30)
logits = g(jax.random.key(0), params, x)            # [samples, batch, classes]
decompose_logits(logits).epistemic
```
"""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from jaxeff.core import check_count, check_function, check_key


def monte_carlo(
    g: Callable[..., Any], samples: int, *, chunk: int | None = None
) -> Callable[..., Any]:
    """Evaluates a function that takes a random key several times.

    What doesn't depend on the key is computed once for all draws of a chunk.

    Args:
        g: `g(key, *args)`, as `jaxeff.noisy` returns it.
        samples: Number of draws.
        chunk: Draws evaluated together, for less memory; all of them if None.

    Returns:
        A pure function `h(key, *args)` of the results of `g`, each with a first axis of draws.

    Raises:
        TypeError: `g` is no function, or a number is none; when called: the key is none.
        ValueError: A number is below 1.
    """
    check_function("monte_carlo: g", g, "g(key, params, *inputs)")
    check_count("samples", samples)
    if chunk is not None:
        check_count("chunk", chunk)

    def h(key: PRNGKeyArray, *args: Any, **kwargs: Any) -> Any:
        check_key("monte_carlo: key", key)
        # The keys don't depend on `chunk`, so neither do the draws.
        keys = jax.random.split(key, samples)
        if chunk is None or chunk >= samples:
            # Mapped over keys alone: what doesn't depend on them has no axis of draws, and is
            # computed once. `lax.map` does the same chunk after chunk, in the memory of one.
            return jax.vmap(lambda k: g(k, *args, **kwargs))(keys)
        return jax.lax.map(lambda k: g(k, *args, **kwargs), keys, batch_size=chunk)

    return h
