"""Labels and data that no network can learn from are named as such, not as a learning rate."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxeff.hardening import distilled
from jaxeff.training import DivergedError, cross_entropy, fit, stateless, sweep

X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)
Y = np.arange(8) % 2
PARAMS = {"w": jnp.zeros((3, 2))}


def f(params, x):
    return x @ params["w"]


LOSSES = {
    "cross_entropy": cross_entropy(f),
    "distilled": distilled(f, lambda x: x[:, :2]),
}
WRONG = [
    (Y + 1, ValueError, r"there are 2 classes, so labels must be 0 to 1; found 1 to 2"),
    (Y - 1, ValueError, "found -1 to 0"),
    (Y.astype(np.float32), TypeError, r"integer class labels of shape \[examples\], not float32"),
    (np.eye(2, dtype=int)[Y], TypeError, r"integer class labels of shape .*\[8, 2\]"),
]


def train(loss, data):
    return fit(
        jax.random.key(0), loss, PARAMS, data,
        optimizer=optax.sgd(0.1), epochs=1, batch_size=4, progress=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("labels", "error", "message"), WRONG)
def test_labels_are_held_to_the_classes_before_training(name, labels, error, message):
    with pytest.raises(error, match=message):
        train(LOSSES[name], (X, labels))


@pytest.mark.slow
@pytest.mark.parametrize("name", LOSSES)
def test_right_labels_train(name):
    assert np.isfinite(train(LOSSES[name], (X, Y)).history[0]["loss"])


@pytest.mark.slow
def test_labels_of_a_sweep():
    with pytest.raises(ValueError, match="labels must be 0 to 1; found 1 to 2"):
        sweep(
            jax.random.key(0), lambda level: cross_entropy(f), lambda key: (PARAMS, None),
            (X, Y + 1), jnp.zeros(2), optimizer=optax.sgd(0.1), epochs=1, batch_size=4,
            progress=False,
        )  # fmt: skip


def wrapped(*args):
    """A loss of labels inside of another one, which nobody can look into."""
    return LOSSES["cross_entropy"](*args)


def test_negative_labels_are_no_other_class():
    batch = (X[:4], np.array([0, 1, -1, 0]))
    value, _ = wrapped(jax.random.key(0), PARAMS, None, batch, 0)
    assert np.isnan(value)


def test_what_diverges_because_of_labels_says_their_range():
    with pytest.raises(DivergedError, match=r"range: data\[1\] holds integers from -1 to 0"):
        train(wrapped, (X, Y - 1))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_data_that_are_not_finite_are_named(bad):
    x = X.copy()
    x[3, 1] = bad
    with pytest.raises(DivergedError, match=r"1 of 24 values of data\[0\] are NaN or infinite"):
        train(wrapped, (x, Y))


@pytest.mark.slow
def test_a_learning_rate_is_still_one():
    loss = stateless(lambda key, params, batch: jnp.exp(1e3 + (params["w"] ** 2).sum()))
    with pytest.raises(DivergedError, match=r"Lower the learning rate or clip the gradients\.$"):
        train(loss, (X,))
