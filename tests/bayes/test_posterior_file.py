import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.bayes import Draws, load_posterior, save_posterior
from jaxeff.moments import Gaussian
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
