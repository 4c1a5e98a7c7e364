"""Both cheap measures against closed forms, and on a network with an obviously fragile layer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxeff.noise import Additive, Multiplicative, noisy
from jaxeff.robustness import (
    NoiseSensitivity,
    kl_sensitivity,
    learn_budget,
    spread_levels,
    tolerated_level,
)
from jaxeff.training import stateless
from tests.chains import chain, chain_parameters

SITES = ("input", "fc1", "fc2", "fc3")
KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (64, 6))


@pytest.fixture(scope="module")
def params():
    """The second layer speaks so quietly that a little noise drowns it."""
    return chain_parameters(((6, 16), (16, 16), (16, 4)), (0.6, 1e-3, 1e3))


@pytest.mark.slow
def test_weak_noise_on_the_logits_by_the_fisher_information(params):
    levels = jnp.array([1e-3, 1e-2])
    soft = jax.tree.map(lambda leaf: leaf, params) | {
        "fc3": {"kernel": params["fc3"]["kernel"] / 9}
    }
    sensitivities = kl_sensitivity(KEY, chain, soft, X, ["fc3"], levels, draws=50)
    probs = jax.nn.softmax(chain(soft, X))
    trace = np.asarray((1 - (probs**2).sum(-1)).mean())
    expected = 0.5 * levels**2 * trace
    error = np.maximum(sensitivities.std_error[0], 1e-3 * expected)
    np.testing.assert_array_less(np.abs(sensitivities.kl[0] - expected)[1:], 4 * error[1:])


@pytest.mark.slow
def test_one_layer_at_a_time_is_perturbed(params):
    levels = jnp.array([0.0, 0.1])
    sensitivities = kl_sensitivity(
        KEY, chain, params, X, SITES, levels, noise=Multiplicative, draws=2
    )
    np.testing.assert_allclose(sensitivities.kl[:, 0], 0, atol=1e-6)
    keys = jax.random.split(KEY, 2)
    clean = jax.nn.log_softmax(chain(params, X))
    for i, site in enumerate(SITES):
        g = noisy(chain, {site: Multiplicative(0.1)})
        by_hand = [
            (jnp.exp(clean) * (clean - jax.nn.log_softmax(g(k, params, X)))).sum(-1).mean()
            for k in keys
        ]
        assert sensitivities.kl[i, 1] == pytest.approx(np.mean(by_hand), rel=1e-4)
    # Each layer at a level of its own, the second at both.
    by_site = kl_sensitivity(
        KEY, chain, params, X, SITES, levels[jnp.array([[0], [1], [1], [0]])],
        noise=Multiplicative, draws=2,
    )  # fmt: skip
    np.testing.assert_allclose(
        by_site.kl[:, 0], sensitivities.kl[np.arange(4), [0, 1, 1, 0]], rtol=1e-5, atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.promotes("dtype")
def test_the_fragile_layer_ranks_first(params):
    sensitivities = kl_sensitivity(KEY, chain, params, X, SITES, jnp.logspace(-5, 2, 15))
    tolerated = dict(zip(SITES, tolerated_level(sensitivities), strict=True))
    assert min(tolerated, key=tolerated.get) == "fc2"
    assert tolerated["fc2"] < 0.05 * min(v for k, v in tolerated.items() if k != "fc2")

    labels = chain(params, X).argmax(-1)
    budget = learn_budget(
        KEY, chain, params, (X, labels), SITES, 0.05, epochs=300, batch_size=64,
        budget_optimizer=optax.adam(0.05), progress=False,
    )  # fmt: skip
    assert min(budget.levels, key=budget.levels.get) == "fc2"
    assert np.exp(np.mean(np.log([*budget.levels.values()]))) == pytest.approx(0.05, rel=1e-4)
    jax.tree.map(np.testing.assert_array_equal, budget.params, params)  # left as they were


@pytest.mark.slow
@pytest.mark.promotes("dtype")  # optax does
@pytest.mark.promotes("rank")
def test_the_budget_equalizes_the_damage():
    # A linear chain under squared error: the loss is sum_i c_i sigma_i^2 with known c_i.
    def f(params, x):
        return x * params["fc1"]["w"] * params["fc2"]["w"]

    def squared(g):
        def loss(key, params, batch):
            return jnp.mean((g(key, params, batch) - f(params, batch)) ** 2)

        return stateless(loss)

    params = {"fc1": {"w": jnp.full((1,), 3.0)}, "fc2": {"w": jnp.full((1,), 0.5)}}
    data = jnp.ones((2000, 1))
    sites = ["input", "fc1", "fc2"]
    budget = learn_budget(
        KEY, f, params, data, sites, 0.2, epochs=300, batch_size=1000,
        loss=squared, budget_optimizer=optax.adam(optax.cosine_decay_schedule(0.05, 600)),
        progress=False,
    )  # fmt: skip
    gains = np.array([1.5, 0.5, 1.0])  # of noise at each site, on its way to the output
    damage = gains * np.array([budget.levels[s] for s in sites])
    np.testing.assert_allclose(damage, np.exp(np.log(damage).mean()), rtol=0.05)


@pytest.mark.slow
@pytest.mark.promotes("dtype")
def test_joint_training_moves_the_weights(params):
    labels = chain(params, X).argmax(-1)
    budget = learn_budget(
        KEY, chain, params, (X, labels), SITES, 0.05, epochs=3, batch_size=64,
        optimizer=optax.adam(1e-3), progress=False,
    )  # fmt: skip
    assert not np.array_equal(budget.params["fc1"]["kernel"], params["fc1"]["kernel"])
    assert len(budget.history) == 3


def test_tolerated_level_interpolates_and_says_beyond():
    levels = np.array([0.1, 1.0, 10.0])
    kl = np.array([[0.01, 1.0, 100.0], [1.0, 2.0, 3.0], [1e-4, 1e-3, 0.1]])
    tolerated = tolerated_level(NoiseSensitivity(("a", "b", "c"), levels, kl, kl), threshold=0.1)
    np.testing.assert_allclose(tolerated, [10**-0.5, 0, 10], rtol=1e-6)
    assert tolerated_level(NoiseSensitivity(("c",), levels, kl[2:], kl[2:]))[0] == np.inf
    by_site = NoiseSensitivity(
        ("a", "b"), np.array([[0.1, 1.0], [3.0, 4.0]]), kl[:2, :2], kl[:2, :2]
    )
    np.testing.assert_allclose(tolerated_level(by_site, threshold=0.1), [10**-0.5, 0], rtol=1e-6)
    levels = spread_levels(0.3, jnp.array([0.0, 5.0, -2.0]))
    assert float(jnp.prod(levels)) == pytest.approx(0.3**3, rel=1e-5)


def test_mistakes(params):
    with pytest.raises(ValueError, match="patterns that differ"):
        kl_sensitivity(KEY, chain, params, X, ["fc1", "fc1"], jnp.ones(1))
    with pytest.raises(ValueError, match="one row"):
        kl_sensitivity(KEY, chain, params, X, ["fc1"], 1.0)
    with pytest.raises(ValueError, match="row for each site"):
        kl_sensitivity(KEY, chain, params, X, ["fc1"], jnp.ones((2, 3)))
    with pytest.raises(ValueError, match=r"Additive\.sigma must be at least 0"):
        kl_sensitivity(KEY, chain, params, X, ["fc1"], jnp.array([-1.0]), noise=Additive)
    with pytest.raises(ValueError, match="matches no site"):
        kl_sensitivity(KEY, chain, params, X, ["fc9"], jnp.ones(1))
    arguments = (KEY, chain, params, (X, jnp.zeros(64, int)))
    with pytest.raises(ValueError, match="two different sites"):
        learn_budget(*arguments, ["fc1"], 0.1, epochs=1, batch_size=8)
    with pytest.raises(ValueError, match="level must be at least"):
        learn_budget(*arguments, SITES, 0.0, epochs=1, batch_size=8)
