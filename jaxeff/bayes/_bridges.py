"""Hand-overs between inference methods.

```python
import jax
import jax.numpy as jnp
import optax

from jaxeff.bayes import around_best_draw, distill, nuts, predict, svi

def f(params, x):                                          # a line; mean and log-variance
    return jnp.stack([params["slope"] * x, jnp.full_like(x, -2.0)], -1)

key, params, x = jax.random.key(0), {"slope": jnp.ones(())}, jnp.linspace(-1, 1, 100)
data = x, 2 * x + 0.3 * jax.random.normal(key, (100,))
options = {"epochs": 100, "optimizer": optax.adam(1e-2), "likelihood": "gaussian"}
found = svi(key, f, params, data, **options).posterior
chains = nuts(key, f, params, data, likelihood="gaussian", chains=4, init=found)  # SVI -> MCMC
svi(key, f, around_best_draw(chains), data, **options)                            # MCMC -> SVI
distill(key, f, params, (x,), chains, epochs=100, optimizer=optax.adam(1e-2))
```
"""

from typing import Any

import numpy as np

from jaxeff.bayes.posteriors import with_random
from jaxeff.bayes.sampling import MCMCResult
from jaxeff.core import check_number, instance_of, non_negative, validate
from jaxeff.moment_propagation import Gaussian


@validate(result=instance_of(MCMCResult), spread=non_negative)
def around_best_draw(result: MCMCResult, spread: float = 0.3) -> Any:
    """Makes a start of SVI from a sampler: its best draw, and a share of its chain's spread.

    The draws' own mean won't do for a network: hidden units that may be exchanged or change sign
    average to one that is near zero, and SVI from there collapses. Nor is the whole standard
    deviation what a guide of independent parameters ends at: it knows no correlations, so it is
    narrower (0.3 reached the best objective on two moons, of 0.1, 0.3 and 1). What lies between
    chains is no scale at all, so the spread is that within one.

    Args:
        result: Samples of `nuts` or `hmc`.
        spread: Share of the standard deviations of the draws of the same chain.

    Returns:
        A pytree of `Gaussian` to pass to `svi` as its ``params``; its means are the draw with the
        highest posterior density.

    Raises:
        ValueError: The sampler doesn't know the density, or the spread isn't positive.
    """
    if "log_density" not in result.stats:
        raise ValueError(
            "samplers on mini-batches don't know the density of their draws: start SVI at one of "
            "them, posterior.at(index), instead"
        )
    check_number("spread", spread, above=0)
    log_density = result.stats["log_density"]
    # Statistics are of all iterations, draws of the last in each group of `thin`.
    thin = log_density.shape[1] // result.posterior.draws_per_chain
    of_kept = log_density[:, thin - 1 :: thin]
    chain, draw = np.unravel_index(np.argmax(of_kept), of_kept.shape)
    # Within the best chain: another chain may sit in another mode, which is no width of this one.
    gaussians = {
        path: Gaussian(draws[chain, draw], spread**2 * draws[chain].var(0))
        for path, draws in result.posterior.random.items()
    }
    return with_random(result.posterior.params, gaussians)
