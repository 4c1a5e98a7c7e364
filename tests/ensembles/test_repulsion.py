"""Losses of members: each learns as if alone, repulsion adds its field, mistakes are named."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxeff
from jaxeff.ensembles import (
    RBF,
    Interval,
    Members,
    NoiseImages,
    Patches,
    ShuffledPixels,
    batch_inputs,
    bootstrap_weights,
    member_loss,
    optimize_members,
    repulsion,
    repulsive,
    with_prior,
)
from jaxeff.nn import MLP
from jaxeff.noise import Additive
from jaxeff.training import cross_entropy, fit, sweep

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (64, 6))
Y = (X[:, 0] > 0).astype(jnp.int32) + (X[:, 1] > 0).astype(jnp.int32)
OUTSIDE = 3.0 + jax.random.normal(jax.random.key(2), (40, 6))
F, PARAMS = jaxeff.functional(MLP((6, 12, 8, 3), rngs=nnx.Rngs(0)))
G, HEADS = jaxeff.ensemble(KEY, F, PARAMS, {"fc3": Members(4)})


def make(key):
    return jaxeff.functional(MLP((6, 12, 8, 3), rngs=nnx.Rngs(key)))[1]


@pytest.mark.slow
@pytest.mark.promotes("dtype")
def test_every_member_learns_as_if_alone():
    g, params = jaxeff.ensemble(KEY, F, PARAMS, {"*": Members(3)}, init=make)
    run = dict(optimizer=optax.adam(1e-2), epochs=2, batch_size=16, progress=False)
    together = fit(KEY, member_loss(g), params, (X, Y), **run)
    for i in range(3):
        alone = fit(KEY, cross_entropy(F), g.member(params, i), (X, Y), **run)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
            g.member(together.params, i), alone.params,
        )  # fmt: skip
    assert together.history[-1]["loss"] < together.history[0]["loss"]
    assert "accuracy" in together.history[0]


def gradients(loss, params, batch=(X, Y), key=KEY):
    (value, (metrics, _)), grads = jax.jit(
        jax.value_and_grad(lambda p: loss(key, p, None, batch, 0), has_aux=True)
    )(params)
    return value, metrics, grads


@pytest.mark.slow
@pytest.mark.parametrize("on", ["outputs", "probabilities"])
@pytest.mark.parametrize("method", ["wgd", "svgd"])
def test_function_space_repulsion_is_the_field_pulled_back(on, method):
    loss = repulsive(member_loss(G), G, OUTSIDE, strength=0.3, on=on, method=method)
    _, metrics, ours = gradients(loss, HEADS)
    _, _, without = gradients(repulsive(member_loss(G), G, OUTSIDE, strength=0.0, on=on,
                                        method=method), HEADS)  # fmt: skip

    def points(params):
        outputs = G(params, OUTSIDE)  # as many as there are: their order plays no part
        return (jax.nn.softmax(outputs) if on == "probabilities" else outputs).reshape(4, -1)

    field = repulsion(points(HEADS), RBF(), method)
    (pulled,) = jax.vjp(points, HEADS)[1](field.field)
    jax.tree.map(
        lambda a, b, v: np.testing.assert_allclose(a, b - 0.3 * v, atol=1e-5), ours, without, pulled
    )
    np.testing.assert_allclose(metrics["repulsion"], field.potential, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [RBF(), RBF(power=1)])
def test_repulsion_may_move_the_members_alone(kernel):
    settings = {"samples": OUTSIDE, "strength": 0.3, "kernel": kernel}
    everything, alone = (
        gradients(repulsive(member_loss(G), G, moves=moves, **settings), HEADS)
        for moves in ("all", "members")
    )
    _, _, without = gradients(member_loss(G), HEADS)
    np.testing.assert_allclose(alone[0], everything[0], rtol=1e-6)
    # What members share learns as if nothing repelled them; they are pushed as far as before.
    for name in ("fc1", "fc2"):
        found = alone[2][name]["kernel"]
        np.testing.assert_allclose(found, without[name]["kernel"], atol=1e-6)
        assert np.abs(everything[2][name]["kernel"] - found).max() > 1e-4
    np.testing.assert_allclose(alone[2]["fc3"]["kernel"], everything[2]["fc3"]["kernel"], atol=1e-6)


@pytest.mark.slow
def test_weight_space_repulsion_acts_on_members_alone():
    loss = repulsive(member_loss(G), G, strength=0.3, space="weights")
    _, _, ours = gradients(loss, HEADS)
    _, _, without = gradients(member_loss(G), HEADS)
    np.testing.assert_allclose(ours["fc1"]["kernel"], without["fc1"]["kernel"], atol=1e-6)
    flat = jnp.concatenate([HEADS["fc3"]["bias"], HEADS["fc3"]["kernel"].reshape(4, -1)], axis=1)
    field = repulsion(flat, RBF()).field
    np.testing.assert_allclose(
        ours["fc3"]["bias"], without["fc3"]["bias"] - 0.3 * field[:, :3], atol=1e-5
    )


@pytest.mark.slow
def test_stein_averages_gradients_in_weight_space():
    loss = repulsive(member_loss(G), G, strength=0.0, space="weights", method="svgd")
    value, _, ours = gradients(loss, HEADS)
    plain, _, without = gradients(member_loss(G), HEADS)
    np.testing.assert_allclose(value, plain, rtol=1e-6)
    flat = jnp.concatenate([HEADS["fc3"]["bias"], HEADS["fc3"]["kernel"].reshape(4, -1)], axis=1)
    k = repulsion(flat, RBF()).kernel
    by_hand = jnp.einsum("ij,jab->iab", k, without["fc3"]["kernel"]) / 4
    np.testing.assert_allclose(ours["fc3"]["kernel"], by_hand, atol=1e-6)
    np.testing.assert_allclose(ours["fc1"]["kernel"], without["fc1"]["kernel"], atol=1e-6)


@pytest.mark.slow
def test_stein_averages_gradients_in_function_space():
    loss = repulsive(member_loss(G), G, OUTSIDE, strength=0.0, method="svgd")
    value, _, ours = gradients(loss, HEADS)
    np.testing.assert_allclose(value, gradients(member_loss(G), HEADS)[0], rtol=1e-6)
    k = repulsion(G(HEADS, OUTSIDE).reshape(4, -1), RBF()).kernel
    outputs, back = jax.vjp(lambda p: G(p, X), HEADS)
    slopes = jax.grad(lambda out: member_loss(G).of_outputs(out, (X, Y)))(outputs)
    (by_hand,) = back(jnp.tensordot(k / 4, slopes, 1))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), ours, by_hand)


@pytest.mark.slow
@pytest.mark.promotes("dtype")
def test_repulsion_makes_members_disagree_where_there_are_no_data():
    from jaxeff.uncertainty import decompose_logits

    run = dict(optimizer=optax.adam(1e-2), epochs=30, batch_size=32, progress=False)
    plain = fit(KEY, member_loss(G), HEADS, (X, Y), **run).params
    loss = repulsive(member_loss(G), G, OUTSIDE, strength=0.05)
    pushed = fit(KEY, loss, HEADS, (X, Y), **run).params
    far = 3.0 + jax.random.normal(jax.random.key(9), (100, 6))
    told = [decompose_logits(G(p, far)).epistemic.mean() for p in (plain, pushed)]
    assert told[1] > 2 * told[0]
    right = [(G(p, X).mean(0).argmax(-1) == Y).mean() for p in (plain, pushed)]
    assert right[1] > right[0] - 0.05


@pytest.mark.slow
@pytest.mark.promotes("dtype")
def test_strengths_are_swept_as_one_program():
    def loss_at(strength):
        return repulsive(member_loss(G), G, OUTSIDE, strength=strength)

    def init(key):
        return jaxeff.ensemble(key, F, PARAMS, {"fc3": Members(4)})[1], None

    result = sweep(
        KEY, loss_at, init, (X, Y), jnp.array([0.0, 0.1]), optimizer=optax.adam(1e-2), epochs=2,
        batch_size=32, keep=True, progress=False,
    )  # fmt: skip
    assert result.params["fc3"]["kernel"].shape == (1, 2, 4, 8, 3)
    assert not result.diverged.any()
    assert np.abs(np.diff(result.params["fc3"]["kernel"], axis=1)).max() > 1e-3


@pytest.mark.slow
def test_repulsion_goes_around_a_noisy_ensemble():
    noisy = jaxeff.noisy(G, {"fc1": Additive(0.1)})
    loss = repulsive(member_loss(noisy, members=4, keyed=True), G, OUTSIDE, strength=0.1)
    value, _, grads = gradients(loss, HEADS)
    assert np.isfinite(value)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


@pytest.mark.slow
def test_features_of_the_batch_are_pushed_apart_without_samples():
    g, params = jaxeff.ensemble(KEY, F, PARAMS, {"fc2": Members(3), "fc3": Members(3)})

    def hidden(params, x):
        hidden = jax.nn.relu(x @ params["fc1"]["kernel"])
        return hidden @ params["fc2"]["kernel"]

    loss = repulsive(member_loss(g), g, batch_inputs, strength=0.1, space=g.of(hidden))
    loss.check(KEY, params, None, (X, Y), 16)
    _, _, ours = gradients(loss, params)
    _, _, without = gradients(member_loss(g), params)
    assert np.abs(ours["fc2"]["kernel"] - without["fc2"]["kernel"]).max() > 1e-4
    np.testing.assert_allclose(ours["fc3"]["kernel"], without["fc3"]["kernel"], atol=1e-6)


@pytest.mark.slow
def test_bootstrap_weights_tell_members_apart():
    weights = bootstrap_weights(KEY, 64, 4)
    np.testing.assert_allclose(weights.mean(0), np.ones(4), rtol=1e-5)
    copies = jaxeff.ensemble(KEY, F, PARAMS, {"fc3": Members(4, spread=0.0)})[1]
    _, _, same = gradients(member_loss(G), copies)
    _, _, other = gradients(member_loss(G), copies, (X, Y, weights))
    assert np.abs(np.diff(same["fc3"]["bias"], axis=0)).max() < 1e-6
    assert np.abs(np.diff(other["fc3"]["bias"], axis=0)).max() > 1e-3
    by_hand = jax.grad(
        lambda p: (
            optax.softmax_cross_entropy_with_integer_labels(F(p, X), Y) * weights[:, 2]
        ).mean()
    )(PARAMS)
    np.testing.assert_allclose(other["fc3"]["bias"][2], by_hand["fc3"]["bias"], atol=1e-6)


@pytest.mark.slow
def test_a_prior_function_is_never_trained():
    h = with_prior(F, 2.0)
    both = {"trained": PARAMS, "prior": make(jax.random.key(3))}
    np.testing.assert_allclose(
        h(both, X), F(PARAMS, X) + 2.0 * F(both["prior"], X), rtol=1e-5, atol=1e-5
    )
    spec = {"trained/fc3": Members(3), "prior/*": Members(3)}
    g, params = jaxeff.ensemble(KEY, h, both, spec)
    _, _, grads = gradients(member_loss(g), params)
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(grads["prior"]))
    assert all((leaf != 0).any() for leaf in jax.tree.leaves(grads["trained"]))
    with pytest.raises(TypeError, match="trained"):
        h(PARAMS, X)


@pytest.mark.slow
@pytest.mark.promotes("dtype")
def test_members_only_leaves_the_backbone_as_it_is():
    result = fit(
        KEY, member_loss(G), HEADS, (X, Y), optimizer=optimize_members(G, optax.adam(1e-2)),
        epochs=1,
        batch_size=16, progress=False,
    )  # fmt: skip
    for name in ("fc1", "fc2"):
        np.testing.assert_array_equal(result.params[name]["kernel"], PARAMS[name]["kernel"])
    assert np.abs(result.params["fc3"]["kernel"] - HEADS["fc3"]["kernel"]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.promotes("dtype")
def test_a_regression_has_a_gaussian_likelihood():
    f, params = jaxeff.functional(MLP((1, 8, 2), rngs=nnx.Rngs(0)))
    g, heads = jaxeff.ensemble(KEY, f, params, {"fc2": Members(3)})
    data = X[:, :1], jnp.sin(X[:, 0])
    loss = repulsive(member_loss(g, "gaussian"), g, Interval(-4.0, 4.0), strength=0.01)
    value, metrics, _ = gradients(loss, heads, data)
    out = g(heads, data[0])
    nll = 0.5 * (jnp.log(2 * jnp.pi) + out[..., 1]) + 0.5 * (
        (data[1][None] - out[..., 0]) ** 2 / jnp.exp(out[..., 1])
    )
    np.testing.assert_allclose(value, nll.mean(1).sum() + 0.01 * metrics["repulsion"], rtol=1e-5)


IMAGES = jax.random.uniform(KEY, (8, 28, 28, 1))


@pytest.mark.parametrize("size", [16, 8, 4, 14])
def test_patches_are_in_another_order(size):
    out = Patches(size)(KEY, IMAGES)
    assert out.shape == IMAGES.shape
    assert (np.asarray(out) != np.asarray(IMAGES)).any((1, 2, 3)).sum() >= 6
    if 28 % size == 0:  # nothing is lost: the same patches

        def patches(x):
            n = 28 // size
            cut = np.asarray(x).reshape(8, n, size, n, size).transpose(0, 1, 3, 2, 4)
            return np.sort(cut.reshape(8, n * n, -1).sum(-1), axis=1)

        np.testing.assert_allclose(patches(out), patches(IMAGES), rtol=1e-6)
    assert set(np.asarray(out).ravel()) <= set(np.asarray(IMAGES).ravel())


@pytest.mark.slow
def test_pixels_and_noise():
    out = ShuffledPixels()(KEY, IMAGES)
    np.testing.assert_array_equal(np.sort(out.reshape(8, -1)), np.sort(IMAGES.reshape(8, -1)))
    assert (out != IMAGES).mean() > 0.9
    noise = NoiseImages()(KEY, IMAGES)
    np.testing.assert_allclose(noise.mean(), IMAGES.mean(), atol=0.02)
    np.testing.assert_allclose(noise.std(), IMAGES.std(), atol=0.02)
    between = Interval(-2.0, 5.0, 100)(KEY, X)
    assert between.shape == (100, 6)
    assert -2 <= between.min() < between.max() <= 5


def run(loss, data=(X, Y)):
    return fit(KEY, loss, HEADS, data, optimizer=optax.sgd(0.1), epochs=1, batch_size=16,
               progress=False)  # fmt: skip


@pytest.mark.slow
def test_what_repulsion_refuses():
    loss = member_loss(G)
    single, _ = jaxeff.ensemble(KEY, F, PARAMS, {"fc3": Members(1)})
    with pytest.raises(ValueError, match=r"fc3 has one member.*Members\(2\) or more"):
        repulsive(member_loss(single), single, OUTSIDE, strength=0.1)
    with pytest.raises(ValueError, match=r"samples are empty.*Patches\(8\)"):
        repulsive(loss, G, OUTSIDE[:0], strength=0.1)
    with pytest.raises(ValueError, match=r'pushed apart on samples.*space="weights"'):
        repulsive(loss, G, strength=0.1)
    with pytest.raises(ValueError, match="no use for samples"):
        repulsive(loss, G, OUTSIDE, strength=0.1, space="weights")
    with pytest.raises(ValueError, match="strength must be at least 0"):
        repulsive(loss, G, OUTSIDE, strength=-1.0)
    with pytest.raises(ValueError, match="method must be one of"):
        repulsive(loss, G, OUTSIDE, strength=0.1, method="sgd")
    with pytest.raises(ValueError, match="moves must be one of"):
        repulsive(loss, G, OUTSIDE, strength=0.1, moves="heads")
    with pytest.raises(TypeError, match=r"a class, write ShuffledPixels\(\.\.\.\)"):
        repulsive(loss, G, ShuffledPixels, strength=0.1)
    with pytest.raises(TypeError, match=r"what jaxeff\.ensemble returned"):
        repulsive(loss, F, OUTSIDE, strength=0.1)
    with pytest.raises(TypeError, match="members=10"):
        member_loss(F)
    with pytest.raises(ValueError, match="64 of 64 repulsive samples are training inputs"):
        run(repulsive(loss, G, X, strength=0.1))
    with pytest.raises(ValueError, match="16 of 16 repulsive samples are training inputs"):
        run(repulsive(loss, G, batch_inputs, strength=0.1))
    with pytest.raises(ValueError, match=r"samples have shape \(40, 5\)"):
        run(repulsive(loss, G, OUTSIDE[:, :5], strength=0.1))
    with pytest.raises(ValueError, match="classes"):
        run(repulsive(loss, G, OUTSIDE, strength=0.1), (X, Y + 2))
    with pytest.raises(ValueError, match="one patch, the image itself"):
        Patches(28)(KEY, IMAGES)
    with pytest.raises(ValueError, match=r"weights of examples.*\[64, 4\]"):
        run(loss, (X, Y, jnp.ones((64, 3))))


def test_svgd_says_what_it_averages_over():
    with pytest.raises(ValueError, match=r'of features choose "wgd"'):
        repulsive(
            member_loss(G), G, OUTSIDE, strength=0.1, space=lambda params, x: x, method="svgd"
        )
    with pytest.raises(TypeError, match=r"member_loss\(g\), not a function"):
        repulsive(lambda *_: 0.0, G, OUTSIDE, strength=0.1, method="svgd")
    with pytest.raises(ValueError, match=r"Patches takes images .*not \[64, 6\]"):
        Patches(2)(KEY, X)
