"""Bayesian linear regression, whose posterior is known, as the tests of this room infer it."""

import jax.numpy as jnp
import numpyro.distributions as dist
import optax

from jaxeff.bayes import svi

NOISE, PRIOR, N = 0.5, 0.8, 64


def linear(params, x):
    return x @ jnp.concatenate([params["a"], params["b"]["c"][:, 0]])


def gaussian(mean):
    return dist.Normal(mean, NOISE)


def parameters(rest):
    """Zeros: three weights, and the rest as the kernel of another layer."""
    return {"a": jnp.zeros(3), "b": {"c": jnp.zeros((rest, 1))}}


def infer(key, params, data, steps, rate, **options):
    """SVI in full batches at KL weight one, by Adam whose rate decays to zero."""
    return svi(
        key, linear, params, data, epochs=steps, batch_size=N, likelihood=gaussian,
        kl=optax.constant_schedule(1.0),
        optimizer=optax.adam(optax.cosine_decay_schedule(rate, steps)), **options,
    )  # fmt: skip
