"""The autoencoder has the published sizes, and its bound is the textbook's."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from flax import nnx

from jaxeff import functional
from jaxeff.nn import VAE
from jaxeff.nn.models import negative_evidence_bound


def test_parameter_count_and_shapes():
    f, params = functional(nnx.eval_shape(lambda: VAE(rngs=nnx.Rngs(0))))
    encoder = 785 * 512 + 513 * 256 + 2 * 257 * 32
    decoder = 33 * 256 + 257 * 512 + 513 * 784
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == encoder + decoder
    x = jax.ShapeDtypeStruct((3, 28, 28, 1), jnp.float32)
    logits, mean, log_var = jax.eval_shape(f, params, jax.random.key(0), x)
    assert (logits.shape, mean.shape, log_var.shape) == ((3, 784), (3, 32), (3, 32))
    with pytest.raises(ValueError, match="hidden width"):
        VAE((784,), rngs=nnx.Rngs(0))


def test_bound():
    rng = np.random.default_rng(0)
    logits, x = rng.normal(size=(4, 6)), rng.random((4, 6))
    mean, log_var = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    p = 1 / (1 + np.exp(-logits))
    cross_entropy = -(x * np.log(p) + (1 - x) * np.log(1 - p)).sum(1)
    normal = dist.Normal(mean, np.exp(log_var / 2))
    divergence = dist.kl_divergence(normal, dist.Normal(0.0, 1.0)).sum(1)
    np.testing.assert_allclose(
        negative_evidence_bound(logits, mean, log_var, x),
        (cross_entropy + divergence).mean(),
        rtol=1e-6,
    )
