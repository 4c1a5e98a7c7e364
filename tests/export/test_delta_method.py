"""Variances of the linear method in artifacts and bundles: a derivative, compiled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxeff_export import Bundle, deploy
from jaxeff_export.cli import app
from typer.testing import CliRunner

import jaxeff

KEYS = jax.random.split(jax.random.key(0), 3)
PARAMS = {
    "first": jax.random.normal(KEYS[0], (8, 6)) / 3,
    "head": jax.random.normal(KEYS[1], (6, 3)) / 2,
}
X = jax.random.normal(KEYS[2], (4, 8))


def f(params, x):
    return jnp.tanh(x @ params["first"]) @ params["head"]


@pytest.fixture(scope="module")
def posterior():
    return jax.tree.map(lambda w: jaxeff.Gaussian(w, jnp.full_like(w, 1e-3)), PARAMS)


def test_an_export_gives_the_same_moments(posterior):
    linear = jaxeff.moments(f, method="linear")

    def moments(x):
        output = linear(posterior, x)
        return output.mean, output.var

    artifact = jax.export.export(jax.jit(moments))(X)
    mean, var = jax.export.deserialize(artifact.serialize()).call(X)
    expected = jax.jit(moments)(X)
    np.testing.assert_allclose(mean, expected[0], rtol=1e-6)
    np.testing.assert_allclose(var, expected[1], rtol=1e-6)


@pytest.mark.slow
def test_a_bundle_gives_the_same_moments(posterior, tmp_path):
    linear = jaxeff.moments(f, method="linear")
    said = jaxeff.moments_check(jax.random.key(0), f, posterior, X).verdict
    bundle = deploy(linear, (posterior, X), path=tmp_path / "bundle", verdict=said)
    assert Bundle.load(bundle.folder).manifest.verdict == said
    shown = CliRunner().invoke(app, ["inspect", str(bundle.folder)]).output
    assert said.splitlines()[-1] in shown.replace("\n", " ")
    ours, theirs = bundle.run(X), linear(posterior, X)
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours.var, theirs.var, rtol=1e-4, atol=1e-6)
