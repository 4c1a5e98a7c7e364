"""Out-of-domain scores come out of bundles beside the logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jaxeff_export import deploy

import jaxeff
from jaxeff import uncertainty as u
from jaxeff.nn import MLP
from jaxeff.program.costs import inputs_of

X = jax.random.normal(jax.random.key(1), (60, 6))
F, PARAMS = jaxeff.functional(MLP((6, 12, 5), rngs=nnx.Rngs(0)))
SITE = "fc2"
Y = jnp.arange(60) % 5


@pytest.mark.slow
def test_scores_of_features_come_out_of_a_bundle(tmp_path):
    features, head = inputs_of(F, SITE)(PARAMS, X), u.dense_head(F, PARAMS, X, SITE)
    fitted = [
        u.knn(features, 3), u.mahalanobis(features, Y, 5), u.relative_mahalanobis(features, Y, 5),
        u.vim(features, head), u.react(features, head), u.dice(features, head), u.ash(head, 50),
    ]  # fmt: skip

    def every(features, outputs):
        return jnp.stack([score(features, outputs) for score in fitted])

    g = u.scored(F, SITE, every)
    fresh = jax.random.normal(jax.random.key(3), (20, 6))
    bundle = deploy(g, (PARAMS, fresh), path=tmp_path / "features")
    logits, scores = bundle.run(fresh)
    expected_logits, expected = jax.jit(g)(PARAMS, fresh)
    np.testing.assert_allclose(logits, expected_logits, rtol=1e-4, atol=1e-5)
    # The root of a difference near zero, in KNN, has half the digits.
    np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_scores_of_inputs_and_moments_come_out_of_bundles(tmp_path):
    posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.02 * w**2), PARAMS)

    def epistemic(posterior, x):
        return u.moment_information(jaxeff.moments(F, method="diagonal")(posterior, x))

    for name, g, params in (
        ("odin", u.odin(F, 10.0, 0.01), PARAMS), ("moments", epistemic, posterior)
    ):  # fmt: skip
        bundle = deploy(g, (params, X), path=tmp_path / name)
        np.testing.assert_allclose(bundle.run(X), jax.jit(g)(params, X), rtol=1e-4, atol=1e-6)
