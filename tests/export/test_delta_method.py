"""Variances of the linear method in artifacts and bundles: a derivative, compiled."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxeff_export import Bundle, deploy, export
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


def tokens(params, x):
    """A mean over positions that share a layer: the linear method is chosen."""
    return jnp.tanh(x @ params["first"]).mean(1) @ params["head"]


def test_a_choice_inside_of_another_function_is_told(posterior):
    x = jnp.stack([X, X + 1], 1)
    whole = lambda p, x: jaxeff.moments(tokens)(p, x)  # noqa: E731
    with pytest.warns(jaxeff.MomentsWarning, match="chosen the linear method.*method='diagonal'"):
        export(whole, (posterior, x))
    for method in ("linear", "diagonal"):
        asked = lambda p, x: jaxeff.moments(tokens, method=method)(p, x)  # noqa: B023, E731
        export(asked, (posterior, x))  # no warning, which would be an error


@pytest.mark.slow
def test_what_is_around_moments_is_deployed_with_them(posterior):
    """JAX's transforms, and `functools.wraps`, hand a function's attributes on."""
    of_f = jaxeff.moments(f)
    widened = functools.wraps(of_f)(lambda p, x: 2 * of_f(p, x).var)
    bundle = deploy(widened, (posterior, X))
    np.testing.assert_allclose(bundle.run(X), widened(posterior, X), rtol=1e-4, atol=1e-6)


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
