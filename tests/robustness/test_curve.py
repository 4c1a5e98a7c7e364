"""Accuracy over noise levels, by hand and against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy import stats

from jaxeff.core import functional
from jaxeff.nn import MLP
from jaxeff.noise import Additive, noisy
from jaxeff.robustness import accuracy_curve, noisy_accuracy, summarize

KEY = jax.random.key(0)
LEVELS = jnp.array([0.0, 0.5, 2.0, 50.0])


def classify(params, x):  # two classes, a margin of |x|
    return jnp.stack([jnp.zeros(len(x)), params["w"] * x[:, 0]], -1)


PARAMS = {"w": jnp.ones(())}
X = jnp.concatenate([jnp.full((1003, 1), -1.0), jnp.full((1002, 1), 1.0)])
Y = (X[:, 0] > 0).astype(jnp.int32)


def test_accuracy_is_that_of_the_closed_form():
    repeats = 6
    curve = accuracy_curve(
        KEY, classify, PARAMS, (X, Y), lambda s: {"input": Additive(s)}, LEVELS, repeats=repeats,
        batch_size=300,
    )  # fmt: skip
    # The input's sign survives noise of level s with probability Phi(1 / s).
    right = stats.norm.cdf(1 / np.maximum(LEVELS, 1e-9))
    error = np.sqrt(right * (1 - right) / (repeats * len(X)))
    np.testing.assert_array_less(np.abs(curve.mean - right), 4 * error + 1e-6)
    assert curve.mean[0] == pytest.approx(1, abs=1e-6)
    assert curve.std[0] == 0
    assert curve.draws.shape == (repeats, 4)
    assert (curve.low <= curve.mean).all()
    assert (curve.high >= curve.mean).all()
    assert curve.draws[0, 2] != curve.draws[1, 2]


def test_any_metric_of_any_outputs():
    """Squared errors of a dictionary's entry: noise of level s adds s squared."""

    def f(params, x):
        return {"value": params["w"] * x[:, 0], "features": x}

    def error(outputs, targets):
        return (outputs["value"] - targets["value"]) ** 2

    data = X, {"value": X[:, 0] + 1.0}
    curve = accuracy_curve(
        KEY, f, PARAMS, data, lambda s: {"input": Additive(s)}, LEVELS, batch_size=300,
        metric=error,
    )  # fmt: skip
    expected = 1 + np.square(LEVELS)
    # The variance of (1 + s e)^2 is 4 s^2 + 2 s^4.
    level = np.asarray(LEVELS)
    spread = np.sqrt((4 * level**2 + 2 * level**4) / (5 * len(X)))
    np.testing.assert_array_less(np.abs(curve.mean - expected), 4 * spread + 1e-5)
    with pytest.raises(ValueError, match=r"a number for each of 2005 examples"):
        accuracy_curve(
            KEY, f, PARAMS, data, {"input": Additive(LEVELS)}, LEVELS, batch_size=3000,
            metric=lambda outputs, targets: error(outputs, targets).mean(),
        )  # fmt: skip
    with pytest.raises(TypeError, match="integers"):  # without one they are labels
        accuracy_curve(KEY, classify, PARAMS, (X, X[:, 0]), {"input": Additive(LEVELS)}, LEVELS)


@pytest.mark.parametrize("label", [-1, 100])
def test_labels_that_are_no_class_are_refused(label):
    labels = jnp.full(len(X), label)
    with pytest.raises(ValueError, match=rf"labels.*{label}"):
        accuracy_curve(KEY, classify, PARAMS, (X, labels), {"input": Additive(LEVELS)}, LEVELS)


@pytest.mark.slow
def test_batches_chunks_and_state_change_nothing():
    model = MLP((4, 8, 3), batch_norm=True, rngs=nnx.Rngs(0))
    model.eval()
    f, params = functional(model)
    g, _, state = functional(model, mutable=True)
    x = jax.random.normal(KEY, (10, 4))
    y = jnp.arange(10) % 3
    specs = {"relu": None, "*": Additive(LEVELS)}
    one = noisy_accuracy(KEY, f, params, (x, y), specs, repeats=3, batch_size=4)
    chunked = noisy_accuracy(KEY, f, params, (x, y), specs, repeats=3, batch_size=4, chunk=3)
    stateful = noisy_accuracy(KEY, g, params, (x, y), specs, repeats=3, batch_size=4, state=state)
    np.testing.assert_array_equal(one, chunked)
    np.testing.assert_array_equal(one, stateful)

    # By hand; the order of the spec's patterns decides, so ReLU stays without noise.
    keys = jax.random.split(KEY, (3, 3))
    by_hand = jax.jit(
        lambda k, level, x: noisy(f, {"relu": None, "*": Additive(level)})(k, params, x)
    )
    for i, level in enumerate(LEVELS):
        filled = jnp.concatenate([x, x[-1:], x[-1:]]).reshape(3, 4, 4)
        logits = jnp.concatenate([by_hand(keys[1, j], level, filled[j]) for j in range(3)])
        assert one[1, i] == pytest.approx(float((logits[:10].argmax(-1) == y).mean()))


def test_jits_and_vmaps_over_parameters():
    many = {"w": jnp.array([1.0, -1.0])}

    @jax.jit
    @jax.vmap
    def measure(params):
        return noisy_accuracy(KEY, classify, params, (X, Y), {"input": Additive(LEVELS)}, repeats=2)

    right, wrong = measure(many)
    np.testing.assert_allclose(right + wrong, 1, atol=1e-6)


def test_summary_leaves_out_what_diverged():
    draws = np.array([[0.9, 0.5, np.nan], [0.8, np.nan, np.nan], [0.7, 0.7, np.nan]])
    curve = summarize([1, 2, 3], draws)
    np.testing.assert_allclose(curve.mean, [0.8, 0.6, np.nan])
    np.testing.assert_array_equal(curve.replicates, [3, 2, 0])
    low, high = stats.t.interval(0.95, 2, loc=0.8, scale=0.1 / np.sqrt(3))
    assert (curve.low[0], curve.high[0]) == pytest.approx((low, high))
    single = summarize([1, 2], draws[:1, :2])
    np.testing.assert_array_equal(single.mean, [0.9, 0.5])
    assert np.isnan(single.low).all()
    assert np.isnan(single.std).all()


def test_mistakes():
    def measure(levels, data=(X, Y), **counts):
        return accuracy_curve(
            KEY, classify, PARAMS, data, lambda s: {"input": Additive(s)}, levels, **counts
        )

    with pytest.raises(ValueError, match="one row"):
        measure(1.0)
    with pytest.raises(ValueError, match="same number of examples"):
        measure(LEVELS, (X, Y[:3]))
    with pytest.raises(ValueError, match="repeats must be at least 1"):
        measure(LEVELS, repeats=0)
    with pytest.raises(ValueError, match="at least 0, but is -1"):
        measure(-LEVELS - 1)
    with pytest.raises(ValueError, match="no site"):
        accuracy_curve(KEY, classify, PARAMS, (X, Y), lambda s: {"fc*": Additive(s)}, LEVELS)
    with pytest.raises(ValueError, match="replicates"):
        summarize(LEVELS, np.zeros((3, 2)))
