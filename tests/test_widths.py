"""Norms, distances and mean squares of float16, whose squares end at 256, against float32's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff import uncertainty as u
from jaxeff.bayes._distillation import _distance
from jaxeff.core import widened
from jaxeff.ensembles import feature_density
from jaxeff.ensembles._distance_aware import _norm
from jaxeff.robustness.curves import weight_rms

LABELS = jnp.arange(40) % 2
LARGE = (1000 * jax.random.normal(jax.random.key(0), (40, 3))).astype(jnp.float16)
SMALL = (1e-5 * jax.random.normal(jax.random.key(1), (40, 3))).astype(jnp.float16)


def distillation(x):
    return _distance(x[:20], x[20:])


def spectral_norm(x):
    return _norm(lambda v, w: w @ v, x, (3,), 50)


SCORES = {
    "knn": lambda x: u.knn(x[:30], 3)(x[30:]),
    "mahalanobis": lambda x: u.mahalanobis(x, LABELS, 2)(x),
    "relative": lambda x: u.relative_mahalanobis(x, LABELS, 2)(x),
    "density": lambda x: feature_density(x, LABELS, 2).log_joint(x),
    "weights": lambda x: weight_rms({"fc": {"kernel": x}})["fc"],
    "distillation": distillation,
    "spectral norm": spectral_norm,
    "mean squared error": lambda x: u.prediction_mse(x[:, 0], x[:, 1], jnp.ones(40, bool)),
}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("x", [LARGE, SMALL], ids=["large", "small"])
def test_float16_has_the_result_of_float32(name, x):
    narrow, wide = SCORES[name](x), SCORES[name](x.astype(jnp.float32))
    np.testing.assert_allclose(narrow, wide, rtol=2e-3)
    assert np.isfinite(narrow).all()
    assert (np.asarray(narrow) != 0).all()


def test_numbers_of_other_dtypes_stay():
    assert widened(jnp.ones(2, jnp.bfloat16)).dtype == jnp.float32
    for dtype in (jnp.float32, jnp.int8, bool):
        assert widened(jnp.ones(2, dtype)).dtype == dtype
