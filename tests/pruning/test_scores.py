"""Scores against closed forms and brute force on a few channels."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from scipy.spatial.distance import cdist

import jaxeff
from jaxeff.pruning import Plan, PlanError, Prune, channels, masked, prune_plan, pruned, scores
from jaxeff.pruning.scores._activations import chosen
from jaxeff.pruning.scores._weights import making

X = jax.random.normal(jax.random.key(0), (40, 5))
SIX = "a/w:1"


def net(params, x):
    """Six channels, read by two layers."""
    h = jnp.tanh(x @ params["a"]["w"] + params["a"]["b"][None])
    return jnp.concatenate([h @ params["b"]["w"], jnp.cos(h @ params["c"]["w"])], -1)


@functools.cache
def drawn():
    shapes = {"a": {"w": (5, 6), "b": (6,)}, "b": {"w": (6, 3)}, "c": {"w": (6, 2)}}
    leaves, structure = jax.tree.flatten(shapes, is_leaf=lambda s: isinstance(s, tuple))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    drawn = [jax.random.normal(k, s) for k, s in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


def six():
    coupled = channels(net, drawn(), X)
    assert [g.name for g in coupled.free] == [SIX]
    return drawn(), coupled


def hidden(params):
    return np.asarray(jnp.tanh(X @ params["a"]["w"] + params["a"]["b"][None]), np.float64)


def test_magnitudes_are_of_what_makes_a_channel():
    params, coupled = six()
    w = np.asarray(params["a"]["w"], np.float64)
    np.testing.assert_allclose(scores.l1(params, coupled)[SIX], np.abs(w).sum(0), rtol=1e-6)
    np.testing.assert_allclose(
        scores.l2(params, coupled)[SIX], np.linalg.norm(w, axis=0), rtol=1e-6
    )
    both = scores.summed(jax.tree.map(jnp.ones_like, params), coupled)[SIX]
    np.testing.assert_array_equal(both, 5 + 1 + 3 + 2)  # its column, bias and two rows


def test_what_makes_channels_is_read_from_products_not_from_the_last_axis():
    def f(params, x):
        h = jnp.einsum("bi,oi->bo", x, params["turned"])
        heads = jnp.einsum("bo,okd->bkd", jax.nn.relu(h), params["heads"])
        return jnp.einsum("bkd,kdo->bo", heads * heads, params["out"])

    shapes = {"turned": (6, 5), "heads": (6, 2, 3), "out": (2, 3, 4)}
    params = {n: jnp.arange(np.prod(s), dtype=jnp.float32).reshape(s) for n, s in shapes.items()}
    coupled = channels(f, params, X)
    assert making(coupled) == {("turned", 0), ("heads", 1), ("heads", 2), ("out", 2)}
    l1 = scores.l1(params, coupled)
    np.testing.assert_allclose(l1["heads:0"], params["turned"].sum(1))
    np.testing.assert_allclose(l1["heads:1"], params["heads"].sum((0, 2)))


def test_geometric_median_is_the_sum_of_distances():
    params, coupled = six()
    columns = np.asarray(params["a"]["w"], np.float64).T
    ours = scores.geometric_median(params, coupled)[SIX]
    np.testing.assert_allclose(ours, cdist(columns, columns).sum(1), rtol=1e-12)
    # One that lies between two others goes first, however large it is.
    w = jnp.zeros((5, 6)).at[0].set(jnp.array([1.0, 2.0, 3.0, 4.0, 5.0, 60.0]))
    between = {**params, "a": {**params["a"], "w": w}}
    assert set(scores.geometric_median(between, coupled)[SIX].argsort()[:2].tolist()) == {2, 3}


def test_the_scales_of_normalizations_are_found_whatever_they_are_called():
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(1, 4, (3, 3), rngs=rngs)
            self.norm = nnx.BatchNorm(4, rngs=rngs, use_running_average=True)
            self.head = nnx.Linear(4, 3, rngs=rngs)

        def __call__(self, x):
            return self.head(jax.nn.relu(self.norm(self.conv(x))).mean((1, 2)))

    class Other(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = linen.LayerNorm()(linen.Dense(4, name="first")(x.reshape(2, -1)))
            return linen.Dense(3)(jax.nn.relu(x))

    x, gamma = jnp.ones((2, 6, 6, 1)), jnp.array([0.5, -2.0, 0.1, 1.0])
    f, params = jaxeff.functional(Net(nnx.Rngs(0)))
    params["norm"]["scale"] = gamma
    coupled = channels(f, params, x)
    ours = scores.batch_norm_scale(params, coupled)
    assert list(ours) == ["conv/kernel:3"]
    np.testing.assert_allclose(ours["conv/kernel:3"], np.abs(gamma))
    module = Other()
    f, params = jaxeff.functional(module, module.init(jax.random.key(0), x))
    assert list(scores.batch_norm_scale(params, channels(f, params, x))) == ["first/kernel:1"]
    f, params = net, drawn()
    assert scores.batch_norm_scale(params, channels(f, params, X)) == {}
    with pytest.raises(PlanError, match=r"says nothing about .*'a/w:1' \(made by a\); set None"):
        prune_plan(net, drawn(), X, {"a": Prune(0.5)}, score=scores.batch_norm_scale)


def errors_of(params, removed, corrected):
    """The summed relative errors of both readers without some channels, by brute force."""
    h, total = hidden(params), 0.0
    left = [c for c in range(6) if c not in removed]
    for name in "bc":
        w = np.asarray(params[name]["w"], np.float64)
        y = h @ w
        new = np.linalg.lstsq(h[:, left], y, rcond=None)[0] if corrected else w[left]
        total += np.square(y - h[:, left] @ new).sum() / np.square(y).sum()
    return total


@pytest.mark.parametrize("corrected", [False, True])
def test_reconstruction_removes_greedily_what_the_next_layers_miss_least(corrected):
    params, coupled = six()
    removed = []
    while len(removed) < 5:
        rest = [c for c in range(6) if c not in removed]
        removed.append(min(rest, key=lambda c: errors_of(params, [*removed, c], corrected)))
    ours = scores.reconstruction(net, X, corrected=corrected)(params, coupled)[SIX]
    assert ours.argsort().tolist()[:5] == removed


def test_reconstruction_through_convolutions_and_a_flattening():
    def f(params, x):
        x = jax.nn.relu(
            jax.lax.conv_general_dilated(
                x, params["conv"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        )
        return x.reshape(x.shape[0], -1) @ params["out"]

    key = jax.random.key(3)
    x = jax.random.normal(key, (8, 3, 3, 2))
    params = {
        "conv": jax.random.normal(key, (2, 2, 2, 4)),
        "out": jax.random.normal(key, (36, 3)),
    }
    coupled = channels(f, params, x)
    ours = scores.reconstruction(f, x)(params, coupled)["conv:3"]

    def error(removed):
        keep = ~np.isin(np.arange(4), removed)
        plan = Plan({"conv:3": jnp.asarray(keep)}, coupled)
        return float(jnp.square(masked(f, plan)(params, x) - f(params, x)).sum())

    removed = []
    while len(removed) < 3:
        rest = [c for c in range(4) if c not in removed]
        removed.append(min(rest, key=lambda c: error([*removed, c])))
    assert ours.argsort().tolist()[:3] == removed


def test_corrected_weights_are_least_squares():
    params, coupled = six()
    left = [0, 2, 5]
    plan = Plan({SIX: np.isin(np.arange(6), left)}, coupled)
    new = scores.corrected_weights(net, params, X, plan)
    h = hidden(params)
    for name in "bc":
        best = np.linalg.lstsq(h[:, left], h @ np.asarray(params[name]["w"]), rcond=None)[0]
        np.testing.assert_allclose(new[name]["w"][jnp.array(left)], best, atol=2e-4)
        np.testing.assert_array_equal(np.delete(new[name]["w"], left, 0), 0)
    np.testing.assert_array_equal(new["a"]["w"], params["a"]["w"])
    exact = net(params, X)[:, :3]
    before, after = (pruned(net, plan)(plan.shrink(p), X)[:, :3] for p in (params, new))
    assert jnp.square(after - exact).sum() < jnp.square(before - exact).sum()


def test_a_determinantal_choice_is_the_best_next_one():
    params, coupled = six()
    h = np.asarray(X @ params["a"]["w"] + params["a"]["b"][None], np.float64).T
    kernel = np.exp(-(cdist(h, h) ** 2) * 10 / (40 * h.std() ** 2)) + 0.01 * np.eye(6)
    order = []
    while len(order) < 6:
        rest = [c for c in range(6) if c not in order]
        order.append(max(rest, key=lambda c: np.linalg.det(kernel[np.ix_(*[[*order, c]] * 2)])))
    assert chosen(kernel) == order
    ours = scores.determinantal(net, X)(params, coupled)[SIX]
    assert (-ours).argsort().tolist() == order


def test_a_drawn_choice_follows_the_determinants_of_a_projection():
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 3)))[0]
    kernel = basis @ basis.T
    sets = list(itertools.combinations(range(6), 3))
    probability = np.array([np.linalg.det(kernel[np.ix_(s, s)]) for s in sets])
    np.testing.assert_allclose(probability.sum(), 1)
    draws = 1000
    counts = dict.fromkeys(sets, 0)
    for key in jax.random.split(jax.random.key(0), draws):
        counts[tuple(sorted(chosen(kernel, key)[:3]))] += 1
    share = np.array([counts[s] for s in sets]) / draws
    error = np.sqrt(probability * (1 - probability) / draws)
    assert (np.abs(share - probability) < 4 * error + 1e-9).all()


def test_determinantal_keeps_one_of_two_that_do_the_same():
    params, coupled = six()
    twice = jax.tree.map(lambda w: w, params)
    twice["a"] = {"w": params["a"]["w"].at[:, 1].set(params["a"]["w"][:, 4])}
    twice["a"]["b"] = params["a"]["b"].at[1].set(params["a"]["b"][4])
    order = (-scores.determinantal(net, X)(twice, coupled)[SIX]).argsort(kind="stable").tolist()
    assert order[-1] in (1, 4)
    key = jax.random.key(0)
    first, again = (scores.determinantal(net, X, key=key)(twice, coupled)[SIX] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    with pytest.raises(ValueError, match=r"determinantal: epsilon must be positive"):
        scores.determinantal(net, X, epsilon=0.0)
    with pytest.raises(ValueError, match="needs a batch with at least one example"):
        scores.reconstruction(net, X[:0])(params, coupled)


def test_scores_of_weights_compile_nothing(caplog):
    params, groups = six()
    posterior = jax.tree.map(lambda w: jaxeff.Gaussian(w, jnp.ones_like(w)), params)
    with jax.log_compiles(), caplog.at_level("WARNING"):
        jax.jit(lambda x: x + 17)(X)
        assert "Compiling" in caplog.text
        caplog.clear()
        for score in (scores.l1, scores.l2, scores.signal_to_noise(posterior)):
            score(params, groups)
    assert "Compiling" not in caplog.text
