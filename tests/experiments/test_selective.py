"""The passes that moments are held against, and how predictions are judged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from experiments.beyond.selective import __main__ as s
from experiments.beyond.selective import inputs, networks, passes, recipe
from jaxeff import Gaussian, data

KEY = jax.random.key(0)


def gaussian(key, *shape):
    mean, var = jax.random.split(key)
    return Gaussian(jax.random.normal(mean, shape), jax.random.uniform(var, shape))


def test_a_norm_by_the_tangent_of_its_statistics():
    x = gaussian(KEY, 3, 8)
    output = passes.Calibrating([1.0]).norm(x)
    slopes = jax.vmap(jax.jacfwd(passes.Plain().norm))(x.mean)
    expected = jnp.einsum("nij,nj->ni", slopes**2, x.var)
    np.testing.assert_allclose(output.var, expected, rtol=2e-4)
    np.testing.assert_allclose(output.mean, passes.Plain().norm(x.mean), rtol=1e-5, atol=1e-6)


def test_products_are_those_of_moments():
    """Two products with independent weights are exact in any pass."""
    w, b = gaussian(KEY, 6, 5), gaussian(jax.random.key(1), 5)
    x = gaussian(jax.random.key(2), 4, 6)
    expected = jaxeff.moments(lambda w, b, x: x @ w + b)(w, b, x)
    output = passes.Streamlined().dense(x, w, b)
    np.testing.assert_allclose(output.var, expected.var, rtol=1e-5)
    np.testing.assert_allclose(output.mean, expected.mean, rtol=1e-5, atol=1e-6)


def test_scalars_make_variances_those_of_draws():
    """A mean over positions shares its kernel's noise, which variances of entries forget."""
    net = networks.separable(4, 1, 2)
    posterior = jax.tree.map(lambda w: Gaussian(w, jnp.full_like(w, 0.01)), net.init(KEY))
    x = jax.random.normal(KEY, (8, 14, 14, 1))
    factors = s.scalars(KEY, net, posterior, x, 400)
    draws = jax.vmap(lambda key: net.f(jaxeff.bayes.draw(key, posterior), x))
    exact = draws(jax.random.split(jax.random.key(1), 400)).var(0)
    ours, plain = (
        net.compute(passed, posterior, x).var.mean() / exact.mean()
        for passed in (passes.Calibrating(factors), passes.Calibrating([1.0] * len(factors)))
    )
    assert plain < 0.7
    # Two variances of 400 draws, which ten logits of one network share.
    assert abs(ours - 1) < 4 * np.sqrt(2 * 2 / 400)


@pytest.mark.parametrize("name", recipe.NETWORKS)
def test_all_passes_read_every_network(name):
    settings = s.STUDY.sizes["fast"]
    net, sets = recipe.built(settings, recipe.TEXT if name == "decoder" else "digits", name)
    params = jax.eval_shape(net.init, KEY)
    posterior = jax.tree.map(lambda w: Gaussian(jnp.ones(w.shape), jnp.ones(w.shape)), params)
    x = sets.test[0][:2]
    logits = jax.eval_shape(net.f, params, x)
    recording = passes.Recording()
    jax.eval_shape(lambda p: net.compute(recording, p, x), params)
    ones = [1.0] * len(recording.results)
    for passed in (passes.Streamlined(), passes.Calibrating(ones)):
        result = jax.eval_shape(lambda p, passed=passed: net.compute(passed, p, x), posterior)
        assert result.var.shape == result.mean.shape == logits.shape
    assert sets.outside.shape[1:] == sets.train[0].shape[1:]


def test_judging_counts_what_may_be_taken():
    """Of four predictions the least sure is wrong: three may be taken without risk."""
    probs = jnp.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
    row = recipe.judged(jnp.log(probs), jnp.array([0, 0, 1, 1]), jnp.log(jnp.full((4, 2), 0.5)))
    assert row["covered_half"] == row["covered_one"] == 75
    assert row["aurc"] == pytest.approx(100 * 0.25 / 4)
    assert row["augrc"] == pytest.approx(100 * 0.25 / 4)
    assert row["accuracy"] == 0.75
    assert row["auroc"] == 1


def test_words_are_asked_of_other_speakers(monkeypatch):
    """A sound's first sample says its speaker, the second one its label."""
    labels = np.tile(np.arange(12, dtype=np.int32), 3)

    def audio(speakers):
        return np.stack([np.repeat(speakers, 12), labels], 1).astype(np.int16)

    monkeypatch.setattr(
        inputs.data, "speech_commands",
        lambda: data.Recordings(
            audio([1, 2, 3]), labels, audio([4, 5, 6]), labels,
            train_speakers=np.repeat(["1", "2", "3"], 12),
        ),
    )  # fmt: skip
    monkeypatch.setattr(inputs, "features", lambda x: np.tile(x[:, None, None], (1, 4, 1, 1)))
    monkeypatch.setattr(inputs, "standardized", lambda mean, deviation: lambda x: x)
    sets = inputs.spoken(100, 100, 25, patches=True)
    assert sets.train[0].shape == (20, 4, 2)
    assert sets.held[0].shape == (10, 4, 2)
    assert sets.test[0].shape == (25, 4, 2)
    assert len(sets.outside) == 6
    for x, y in (sets.train, sets.held, sets.test):
        np.testing.assert_array_equal(x[:, 0, 1], y)
        assert y.max() == 9
    learnt, held, tested = ({*x[:, 0, 0].tolist()} for x, _ in (sets.train, sets.held, sets.test))
    assert learnt | held == {1, 2, 3}
    assert len(held) == 1
    assert not learnt & held
    assert tested == {4, 5, 6}
    assert sets.outside[:, 0, 0].min() == 4
    assert {*sets.outside[:, 0, 1].tolist()} == {10, 11}
    assert inputs.spoken(100, 100, 25, patches=False).outside.shape == (6, 4, 2, 1)


def test_what_is_held_out_chooses_how_wide_a_posterior_is():
    """Labels that contradict the mean network want wider weights than its own labels do."""
    settings = s.STUDY.sizes["fast"]
    net = networks.Network(lambda layers, p, x: layers.dense(x, **p), lambda key: None)
    params = {"w": 3 * jax.random.normal(KEY, (2, 3)), "b": jnp.zeros(3)}
    posterior = jax.tree.map(lambda w: Gaussian(w, jnp.full_like(w, 0.01)), params)
    x = jax.random.normal(jax.random.key(1), (64, 2))
    y = net.f(params, x).argmax(-1)
    chosen = [
        recipe.widened(settings, KEY, net, posterior, inputs.Sets((x, y), (x, labels), (x, y), x))
        for labels in (y, (y + 1) % 3)
    ]
    assert chosen[0].factor < chosen[1].factor == max(settings.widths)
    for one in chosen:
        np.testing.assert_allclose(one.weights["w"].var, 0.01 * one.factor, rtol=1e-6)
        np.testing.assert_array_equal(one.weights["w"].mean, params["w"])
