"""Greedy choice of random sites: against what each set says, computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.bayes import predict
from jaxeff.ensembles import affordable_members, choose_random
from jaxeff.uncertainty import auroc, decompose_logits, nll_from_log, predictive_log_probs

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (60, 6)) * jnp.asarray([1, 1, 1, 0, 0, 0.0])[None]
LABELS = (X[:, 0] > 0).astype(jnp.int32)
OUTSIDE = X[:, ::-1]
"""Inputs along axes that none of the data have."""
PARAMS = {
    "first": {"kernel": jnp.eye(6)},
    "middle": {"kernel": jnp.eye(6)},
    "last": {"kernel": 2.0 * jnp.zeros((6, 2)).at[0].set(jnp.asarray([-1.0, 1.0]))},
}
# The last layer knows nothing of the axes that it hasn't seen; noise in the first one only harms.
SPREAD = {"first": jnp.full((6, 6), 4.0), "middle": jnp.full((6, 6), 1e-6),
          "last": jnp.zeros((6, 2)).at[3:].set(4.0) + 1e-4}  # fmt: skip


def f(params, x):
    x = jnp.tanh(x @ params["first"]["kernel"])
    return jnp.tanh(x @ params["middle"]["kernel"]) @ params["last"]["kernel"]


def infer(sites):
    return {
        name: {"kernel": jaxeff.Gaussian(leaf["kernel"], SPREAD[name])} if name in sites else leaf
        for name, leaf in PARAMS.items()
    }


@pytest.mark.slow
def test_it_finds_the_layer_that_knows_what_it_has_not_seen():
    choice = choose_random(
        KEY, f, PARAMS, (X, LABELS), infer, outside=OUTSIDE, times=20.0, samples=20
    )
    assert choice.sites[0] == "last"
    assert "first" not in choice.sites
    none, *tried = choice.trials
    assert none.sites == ()
    np.testing.assert_allclose(
        none.nll, nll_from_log(jax.nn.log_softmax(f(PARAMS, X)), LABELS), rtol=1e-5
    )
    assert {t.sites for t in tried} >= {("first",), ("middle",), ("last",), ("last", "first")}
    for trial in tried[:3]:
        count = min(20, affordable_members(f, PARAMS, X[:1], trial.sites, times=20.0))
        assert trial.draws == count
        inside, outside = (
            predict(KEY, f, infer(trial.sites), x, samples=count) for x in (X, OUTSIDE)
        )
        np.testing.assert_allclose(
            trial.nll, nll_from_log(predictive_log_probs(inside), LABELS), rtol=1e-5
        )
        scores = (decompose_logits(each).epistemic for each in (inside, outside))
        np.testing.assert_allclose(trial.auroc, auroc(*scores), rtol=1e-5)
    assert "chosen" in str(choice)
    kernel = choice.posterior["last"]["kernel"]
    np.testing.assert_array_equal(kernel.var, SPREAD["last"])


def test_a_budget_leaves_out_what_it_can_not_pay():
    # Two draws of the first layer cost two networks, of the last one a sixth more than one.
    choice = choose_random(KEY, f, PARAMS, (X, LABELS), infer, outside=OUTSIDE, times=1.5)
    assert {t.sites for t in choice.trials} == {(), ("last",)}
    assert choice.trials[1].draws == affordable_members(f, PARAMS, X[:1], ("last",), times=1.5)


def test_the_likelihood_alone_may_decide_and_keep_the_network():
    choice = choose_random(KEY, f, PARAMS, (X, LABELS), infer, sites=("first",), times=10.0)
    assert choice.sites == ()
    assert choice.posterior is None
    assert np.isnan(choice.trials[1].auroc)
    with pytest.raises(ValueError, match="no sites with weights"):
        choose_random(KEY, lambda p, x: x[:, :2], PARAMS, (X, LABELS), infer)
