"""What shares a draw, what a level holds an entry for, and levels relative to the signal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.noise import Additive, Mixed, Multiplicative, noisy

KEY = jax.random.key(0)
IMAGES = jax.random.normal(jax.random.key(1), (3, 4, 5, 6))


def draws(x=IMAGES, **choices):
    return np.asarray(Additive(1.0, **choices).perturb(KEY, x) - x)


@pytest.mark.parametrize(
    ("choices", "own"),
    [
        ({"per": "channel"}, (3, 1, 1, 6)),
        ({"per": "sample"}, (3, 1, 1, 1)),
        ({"per": "channel", "at": "weights"}, (1, 1, 1, 6)),
        ({"per": "element", "at": "weights"}, (3, 4, 5, 6)),
    ],
)
def test_what_shares_a_draw(choices, own):
    noise = draws(x=jnp.zeros(IMAGES.shape), **choices)
    first = noise[tuple(slice(n) for n in own)]
    np.testing.assert_array_equal(noise, np.broadcast_to(first, noise.shape))
    assert len(np.unique(first)) == first.size


def test_both_parts_of_mixed_noise_share_their_draws():
    x = jnp.ones(IMAGES.shape)
    noise = Mixed(0.5, 0.5, per="sample").perturb(KEY, x)
    np.testing.assert_array_equal(noise, np.broadcast_to(noise[:, :1, :1, :1], x.shape))
    gain = Multiplicative(0.5, per="channel").perturb(KEY, x)
    np.testing.assert_array_equal(gain, np.broadcast_to(gain[:, :1, :1, :], x.shape))


@pytest.mark.parametrize("per", ["channel", "sample"])
def test_a_shared_draw_has_the_same_moments(per):
    x, n = jnp.full((1, 2, 2, 3), 2.0), 20_000
    run = jax.vmap(Multiplicative(0.3, per=per).perturb, (0, None))
    samples = np.asarray(run(jax.random.split(KEY, n), x), np.float64)
    assert np.abs(samples.mean(0) - 2).max() < 5 * 0.6 / np.sqrt(n)
    assert np.abs(samples.var(0) - 0.36).max() < 5 * 0.36 * np.sqrt(2 / n)


def test_one_level_per_sample_or_channel():
    sigma = np.array([0.0, 1.0, 10.0], np.float32)
    per_sample = draws(at="output")
    ours = Additive(sigma, along="sample").perturb(KEY, IMAGES) - IMAGES
    np.testing.assert_allclose(ours, per_sample * sigma[:, None, None, None], atol=1e-5)
    channels = np.arange(6, dtype=np.float32)
    ours = Multiplicative(channels, along="channel").perturb(KEY, IMAGES)
    np.testing.assert_allclose(ours, IMAGES * (1 + channels * per_sample), rtol=1e-4, atol=1e-4)
    same = Additive(0.3, along="sample").perturb(KEY, IMAGES)
    np.testing.assert_array_equal(same, Additive(0.3).perturb(KEY, IMAGES))


@pytest.mark.slow
def test_a_level_per_image_reaches_every_slot_of_a_network():
    def f(params, x):
        h = jax.lax.conv_general_dilated(
            x, params["conv"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.mean(jax.nn.relu(h), (1, 2)) @ params["fc"]

    params = {"conv": jnp.ones((2, 2, 6, 4)), "fc": jnp.ones((4, 2))}

    @jax.jit
    def run(levels):
        return noisy(f, {"*": Additive(levels, along="sample")})(KEY, params, IMAGES)

    loud, clean = run(jnp.array([1.0, 0.0, 2.0])), f(params, IMAGES)
    np.testing.assert_allclose(loud[1], clean[1], rtol=1e-5, atol=1e-5)
    assert (loud[0] != clean[0]).all()


def test_relative_levels_are_in_units_of_the_range():
    span = float(IMAGES.max() - IMAGES.min())
    for model in (Additive, lambda s, **choices: Mixed(s, 0.2, **choices)):
        ours = model(0.1, relative=True).perturb(KEY, IMAGES)
        np.testing.assert_allclose(ours, model(0.1 * span).perturb(KEY, IMAGES), rtol=1e-4)

    def total(x):
        return Additive(0.1, relative=True).perturb(KEY, x).sum()

    np.testing.assert_array_equal(jax.grad(total)(IMAGES), 1)


def test_a_level_of_the_wrong_shape_is_named():
    bad = np.ones(4)
    with pytest.raises(ValueError, match=r"Additive\.sigma holds one number per sample .* \(3,\)"):
        Additive(bad, along="sample").perturb(KEY, IMAGES)
    with pytest.raises(ValueError, match=r"Mixed\.mul holds one number per channel .* \(6,\)"):
        Mixed(0.1, bad, along="channel").perturb(KEY, IMAGES)
    with pytest.raises(ValueError, match=r"but has shape \(3, 1\)"):
        Additive(np.ones((3, 1)), along="sample").perturb(KEY, IMAGES)


def test_unknown_choices_are_named():
    with pytest.raises(ValueError, match=r"Additive\.per must be one of 'element', 'channel'"):
        Additive(0.1, per="row")
    with pytest.raises(ValueError, match=r"Mixed\.along must be one of None, 'sample'"):
        Mixed(0.1, 0.1, along="batch")
    with pytest.raises(ValueError, match=r"Additive\.relative must be one of False, True"):
        Additive(0.1, relative="range")
    with pytest.raises(ValueError, match=r"Multiplicative\.per=\"sample\" acts on samples"):
        Multiplicative(0.1, at="weights", per="sample")
    with pytest.raises(ValueError, match=r"Additive\.along=\"sample\" acts on samples"):
        Additive(0.1, at="weights", along="sample")
