"""A walk of noise over layers: one noisy site per setting."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.noise import Additive, Mismatch, Mixed, Multiplicative, noisy, slots, walking_noise

KEY = jax.random.key(0)
PARAMS = {name: jax.random.normal(jax.random.key(i), (3, 3)) for i, name in enumerate("ab")}
X = jax.random.normal(KEY, (4, 3))


def f(params, x):
    return jax.nn.relu(jax.nn.relu(x @ params["a"]) @ params["b"]) @ params["a"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "levels"),
    [
        (Additive, [0.1, 2.0]),
        (Multiplicative, np.array([0.5, 3.0])),
        (functools.partial(Mixed, order="add_mul"), [(0.1, 0.2), (0.0, 3.0), (2.0, 0.0)]),
    ],
)
def test_each_setting_is_the_noise_of_one_site(model, levels):
    sites = slots(f, PARAMS, X)
    assert sites == ["input", "a", "relu", "b", "relu_1", "a#1"]
    spec, rows = walking_noise(sites, levels, model)
    assert len(rows) == len(sites) * len(levels)
    assert [site for site, _ in rows] == [site for site in sites for _ in levels]

    def run(setting):
        return noisy(f, setting)(KEY, PARAMS, X)

    walked = jax.jit(jax.vmap(run))(spec)
    for out, (site, level) in zip(walked, rows, strict=True):
        alone = {"a#1": None} if site == "a" else {}
        alone[site] = model(*level) if isinstance(level, tuple) else model(level)
        np.testing.assert_allclose(out, run(alone), rtol=1e-4, atol=1e-5)
        assert (out != f(PARAMS, X)).any()


def test_rows_hold_the_levels_as_they_were_given():
    assert walking_noise(["a"], [0.1, 1.0], Additive)[1] == [("a", 0.1), ("a", 1.0)]
    assert walking_noise(["a"], [(0.1, 1.0)], Mixed)[1] == [("a", (0.1, 1.0))]
    spec, _ = walking_noise(["a", "b"], jnp.logspace(-1, 1, 3), Additive)
    np.testing.assert_allclose(spec["b"].sigma, [0, 0, 0, 0.1, 1, 10], rtol=1e-6)


def test_other_numbers_are_the_same_in_every_setting():
    spec, _ = walking_noise(["a", "b"], [0.1, 0.2], functools.partial(Mismatch, device=3))
    assert {leaf.shape for leaf in jax.tree.leaves(spec)} == {(4,)}
    np.testing.assert_array_equal(spec["b"].device, 3)
    np.testing.assert_allclose(spec["b"].gain, [0, 0, 0.1, 0.2])


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"Additive\.sigma must be at least 0"):
        walking_noise(["a"], [0.1, float("nan")], Additive)
    with pytest.raises(TypeError, match=r"must be a pytree of numbers .* but holds <object"):
        walking_noise(["a"], [0.1], lambda level: object())
    with pytest.raises(ValueError, match="not over 0 sites"):
        walking_noise([], [0.1], Additive)
    with pytest.raises(ValueError, match=r"levels of shape \(0,\)"):
        walking_noise(["a"], [], Additive)
    with pytest.raises(ValueError, match="'b' comes twice"):
        walking_noise(["b", "a", "b"], [0.1], Additive)
