"""Labels of every token, `[batch, tokens]`: in the cross-entropy, in members' and in inference."""

import jax
import numpy as np
import optax
import pytest

import jaxeff
from jaxeff.bayes import svi
from jaxeff.ensembles import Members, member_loss
from jaxeff.training import cross_entropy, fit

KEY = jax.random.key(0)
PARAMS = {"fc": {"kernel": jax.random.normal(jax.random.key(1), (3, 5))}}
X = jax.random.normal(jax.random.key(2), (16, 4, 3))
Y = (X @ jax.random.normal(jax.random.key(3), (3, 5))).argmax(-1)
RUN = {"optimizer": optax.sgd(1.0), "epochs": 30, "batch_size": 8, "progress": False}
WRONG = [
    (Y[:, 0], r"integer class labels of shape \[examples, 4\], not int32\[16\]"),
    (Y[:, :2], r"integer class labels of shape \[examples, 4\], not int32\[16, 2\]"),
]


def f(params, x):
    return x @ params["fc"]["kernel"]


def mean_nll(params):
    log_probs = np.asarray(jax.nn.log_softmax(f(params, X)), np.float64)
    return -np.mean([log_probs[n, t, Y[n, t]] for n in range(16) for t in range(4)])


def value(loss, params, labels=Y):
    return loss(KEY, params, None, (X, labels), 0)


def test_cross_entropy_is_the_mean_over_tokens():
    loss, (metrics, _) = value(cross_entropy(f), PARAMS)
    np.testing.assert_allclose(loss, mean_nll(PARAMS), rtol=1e-6)
    right = np.asarray(f(PARAMS, X)).argmax(-1) == np.asarray(Y)
    np.testing.assert_allclose(metrics["accuracy"], right.mean(), rtol=1e-6)


def test_training_lowers_it():
    trained = fit(KEY, cross_entropy(f), PARAMS, (X, Y), **RUN)
    assert mean_nll(trained.params) < 0.5 * mean_nll(PARAMS)


@pytest.mark.slow
def test_members_have_the_sum_of_their_means():
    g, members = jaxeff.ensemble(KEY, f, PARAMS, {"*": Members(3)})
    loss, _ = value(member_loss(g), members)
    each = [mean_nll(jax.tree.map(lambda w, i=i: w[i], members)) for i in range(3)]
    np.testing.assert_allclose(loss, np.sum(each), rtol=1e-6)


@pytest.mark.slow
def test_inference_sums_the_tokens_of_an_example():
    # With hardly any prior and spread left, the objective of an example is its tokens' sum.
    trained = svi(
        KEY, f, PARAMS, (X, Y), epochs=1, batch_size=16, kl=0.0, init_scale=1e-6,
        optimizer=optax.sgd(0.0), progress=False,
    )  # fmt: skip
    np.testing.assert_allclose(trained.history[0]["nll"], 4 * mean_nll(PARAMS), rtol=1e-4)


def by_svi(labels):
    svi(KEY, f, PARAMS, (X, labels), epochs=1, batch_size=8)


def by_members(labels):
    g, members = jaxeff.ensemble(KEY, f, PARAMS, {"*": Members(2)})
    fit(KEY, member_loss(g), members, (X, labels), **RUN)


def by_cross_entropy(labels):
    fit(KEY, cross_entropy(f), PARAMS, (X, labels), **RUN)


@pytest.mark.parametrize(("labels", "message"), WRONG)
@pytest.mark.parametrize("train", [by_cross_entropy, by_members, by_svi])
def test_labels_of_another_shape_are_refused(train, labels, message):
    with pytest.raises(TypeError, match=message):
        train(labels)


def test_a_label_out_of_range_is_refused():
    with pytest.raises(ValueError, match="there are 5 classes"):
        fit(KEY, cross_entropy(f), PARAMS, (X, Y.at[3, 2].set(5)), **RUN)
