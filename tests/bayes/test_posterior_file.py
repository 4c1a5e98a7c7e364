import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.bayes import (
    Draws,
    Flow,
    FullRank,
    LowRank,
    MeanField,
    load_posterior,
    sample,
    save_posterior,
)
from jaxeff.bayes.variational import CorrelatedPosterior
from jaxeff.moment_propagation import Calibrated, Gaussian
from jaxeff.training import CheckpointError, save_pytree

PARAMS = {"fc": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}, "bn": {"mean": jnp.zeros(3)}}
RNG = np.random.default_rng(0)


def draws():
    random = {"fc/kernel": jnp.asarray(RNG.normal(size=(2, 5, 2, 3)), jnp.float32)}
    return Draws(random, jax.tree.map(lambda p: p + 1, PARAMS))


def mean_field():
    kernel = Gaussian(jnp.ones((2, 3)), jnp.full((2, 3), 0.1))
    bn = {"mean": Gaussian(jnp.ones(3), jnp.ones(3))}
    return {"fc": {"kernel": kernel, "bias": jnp.full(3, 2.0)}, "bn": bn}


def trained_by(guide):
    """A posterior of a guide whose numbers are none that it starts from."""
    stds = {"bn/mean": jnp.ones(3), "fc/kernel": jnp.ones((2, 3))}
    numbers = guide.start(jax.random.key(1), PARAMS, stds)
    moved = jax.tree.map(lambda x: x + jnp.asarray(RNG.normal(size=x.shape), x.dtype) / 10, numbers)
    return guide.posterior(moved, {"bn/mean": 1.0, "fc/bias": None, "fc/kernel": 1.0})


GUIDES = [LowRank(rank=3), FullRank(), Flow(flows=1), MeanField()]


@pytest.mark.slow
@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: type(guide).__name__)
def test_what_a_guide_found_comes_back_as_it_was(tmp_path, guide):
    path, posterior = tmp_path / "posterior.safetensors", trained_by(guide)
    save_posterior(path, posterior)
    loaded = load_posterior(path, PARAMS)
    assert jax.tree.structure(loaded) == jax.tree.structure(posterior)
    jax.tree.map(np.testing.assert_array_equal, loaded, posterior)
    key = jax.random.key(2)
    jax.tree.map(np.testing.assert_array_equal, sample(key, loaded, 3), sample(key, posterior, 3))
    with pytest.raises(CheckpointError, match="the model has no bn/mean"):
        load_posterior(path, {"fc": PARAMS["fc"]})


def test_a_guide_of_the_users_own_has_no_file(tmp_path):
    own = CorrelatedPosterior({"mean": PARAMS, "raw": jnp.zeros(6)}, object(), ("fc/kernel",))
    with pytest.raises(TypeError, match="to_gaussians"):
        save_posterior(tmp_path / "posterior.safetensors", own)


@pytest.mark.parametrize("make", [draws, mean_field])
def test_a_posterior_comes_back_as_it_was(tmp_path, make):
    path, posterior = tmp_path / "posterior.safetensors", make()
    save_posterior(path, posterior)
    loaded = load_posterior(path, PARAMS)
    assert jax.tree.structure(loaded) == jax.tree.structure(posterior)
    jax.tree.map(np.testing.assert_array_equal, loaded, posterior)


@pytest.mark.parametrize("make", [draws, mean_field])
@pytest.mark.parametrize(
    ("other", "message"),
    [
        (PARAMS | {"fc": {"kernel": jnp.zeros((4, 3)), "bias": jnp.zeros(3)}}, r"its fc/kernel"),
        (PARAMS | {"fc2": jnp.zeros(2)}, "it has no fc2"),
        ({"fc": PARAMS["fc"]}, "the model has no bn/mean"),
    ],
)
def test_a_file_of_another_model_is_refused(tmp_path, make, other, message):
    path = tmp_path / "posterior.safetensors"
    save_posterior(path, make())
    with pytest.raises(CheckpointError, match=message):
        load_posterior(path, other)


def test_what_is_no_posterior_is_refused(tmp_path):
    path = tmp_path / "params.safetensors"
    save_pytree(path, PARAMS)
    with pytest.raises(CheckpointError, match="not one of a posterior"):
        load_posterior(path, PARAMS)
    with pytest.raises(TypeError, match="to_gaussians"):
        save_posterior(path, PARAMS)


def test_a_calibrated_posterior_keeps_its_factors_and_their_errors(tmp_path):
    params = {"fc1": {"kernel": jnp.ones((3, 2)), "bias": jnp.zeros(2)}}
    posterior = {
        "fc1": {"kernel": Gaussian(jnp.ones((3, 2)), jnp.ones((3, 2))), "bias": jnp.zeros(2)}
    }
    factors = {"block/fc1": jnp.array([0.3, 0.4]), "mean": jnp.array(0.5)}
    errors = (("block/fc1", 0.04), ("mean", 0.05))
    save_posterior(
        tmp_path / "it.safetensors", Calibrated(posterior, factors, errors, (0.07, 0.01))
    )
    loaded = load_posterior(tmp_path / "it.safetensors", params)
    assert isinstance(loaded, Calibrated)
    assert loaded.errors == errors
    assert loaded.unseen == (0.07, 0.01)
    chex.assert_trees_all_equal(loaded.posterior, posterior)
    chex.assert_trees_all_equal(dict(loaded.factors), factors)


@pytest.mark.parametrize(
    "metadata",
    [
        {"posterior": kind, **more}
        for kind in ("draws", "gaussians", "calibrated", "joint")
        for more in ({}, {"random": 3}, {"guide": [], "sites": 1}, {"random": ["none"]})
    ],
)
def test_forged_files_are_refused_by_name(tmp_path, metadata):
    path = tmp_path / "forged.safetensors"
    save_pytree(path, {"w": jnp.ones(3)}, metadata)
    with pytest.raises(CheckpointError, match=r"forged\.safetensors"):
        load_posterior(path, PARAMS)
