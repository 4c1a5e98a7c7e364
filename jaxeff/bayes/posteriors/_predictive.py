"""Predictions of a sampled network: draw weights from a posterior, run the function with each.

Sharp edge: memory is that of ``chunk`` runs of the function on all inputs (LeNet-5: 24 MB for 1,000
images, however many samples). A convolution with another kernel for each sample is also slow on a
CPU and takes more memory than that, so for large batches one sample at a time (the default) is
best; for a handful of inputs raise ``chunk``. Inputs that don't fit may be split: the same key and
number of samples draw the same weights for each part.

```python
import jax

from jaxeff import Gaussian
from jaxeff.bayes import predict
from jaxeff.nn import small_classifier

f, params, (x, y) = small_classifier(10)
posterior = jax.tree.map(lambda w: Gaussian(w, 0.01 * w**2), params)
assert predict(jax.random.key(0), f, posterior, x, samples=5).shape == (5, 10, 10)
```
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from jaxeff.bayes.posteriors._posterior import Draws, prepare_draws
from jaxeff.core import check_count, check_function, check_key, input_batch, validate


@validate(args=input_batch)
def predict(
    key: PRNGKeyArray,
    f: Callable[..., Any],
    posterior: Any,
    *args: Any,
    samples: int | None = None,
    chunk: int = 1,
) -> Any:
    """Computes outputs of ``f`` under weights drawn from a posterior.

    Compiled once for each ``f``, shape and number of samples.

    Args:
        key: Random key.
        f: ``f(params, *args)``; hashable, as every function is.
        posterior: Any posterior (see `jaxeff.bayes.posteriors`).
        *args: Inputs, passed on to ``f``.
        samples: Number of weight draws; each one is used for all inputs. If None: 30, or all that
            `Draws` hold, chain by chain.
        chunk: Weight draws evaluated together (vmapped); the chunks run one after another.

    Returns:
        The outputs of ``f`` with a leading axis: ``[samples, batch, classes]`` for a classifier.

    Raises:
        TypeError: It is no posterior, ``f`` a Flax model, or the key none.
        ValueError: ``samples`` or ``chunk`` is below 1, or ``f`` refuses the weights because the
            posterior belongs to another model.
    """
    check_key("predict: key", key)
    check_function("predict: f", f)
    for name, value in (("samples", samples), ("chunk", chunk)):
        if value is not None:
            check_count(name, value)
    return _predict(key, posterior, args, f=f, samples=samples, chunk=chunk)


@partial(jax.jit, static_argnames=("f", "samples", "chunk"))
def _predict(
    key: PRNGKeyArray,
    posterior: Any,
    args: tuple[Any, ...],
    *,
    f: Callable[..., Any],
    samples: int | None,
    chunk: int,
) -> Any:
    # All draws in their order, chain by chain: diagnostics take the result apart again.
    if samples is None and isinstance(posterior, Draws):
        entries: Any = jnp.arange(len(posterior))
        at: Callable[[Any], Any] = posterior.at
    else:
        entries, at = prepare_draws(key, posterior, 30 if samples is None else samples)
    count = len(jax.tree.leaves(entries)[0])
    # Mapped, not vmapped: memory is that of `chunk` networks, whatever the number of samples.
    return jax.lax.map(lambda entry: f(at(entry), *args), entries, batch_size=min(chunk, count))
