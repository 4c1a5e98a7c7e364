"""Candidates that are measured by more than accuracy, and searches that weigh what they found."""

import jax
import jax.numpy as jnp
import pytest

from jaxeff.nn import small_classifier
from jaxeff.search import (
    Actions,
    Candidates,
    OneSided,
    Policy,
    RandomSearch,
    Refinement,
    SearchSpace,
    Worth,
    bit_operations,
    search_among,
)  # fmt: skip
from jaxeff.uncertainty import auroc, nll

KEY = jax.random.key(0)


def test_worth_is_a_weighted_sum_of_what_was_measured():
    worth = Worth(nll=-0.5, accuracy=1.0)
    assert worth({"accuracy": 0.9, "nll": 0.2, "auroc": 0.1}) == pytest.approx(0.8)
    assert worth == Worth(accuracy=1.0, nll=-0.5)
    assert repr(worth) == "Worth(weights=(('accuracy', 1.0), ('nll', -0.5)))"
    with pytest.raises(ValueError, match="Worth weighs auroc, which candidates aren't measured by"):
        Worth(auroc=1.0)({"accuracy": 0.9})
    with pytest.raises(ValueError, match="needs the weight of a metric"):
        Worth()


def test_a_search_weighs_named_metrics(tmp_path):
    f, params, data = small_classifier(32)
    elsewhere = jax.random.normal(KEY, data[0].shape)

    def metrics(predict, validation):
        inside, outside = (jax.nn.softmax(predict(x)) for x in (validation[0], elsewhere))
        doubt = [1 - probs.max(-1) for probs in (inside, outside)]
        return {"nll": nll(inside, validation[1]), "auroc": auroc(*doubt)}

    space = SearchSpace.read(f, params, data[0][:1])
    candidates = Candidates(f, params, data, data, space, steps=0, batch_size=32, metrics=metrics)
    options = {
        "agent": RandomSearch(), "latency": bit_operations, "target": 0.5, "episodes": 2,
        "actions": Actions(round_to=4), "reward": OneSided(), "progress": False,
        "folder": tmp_path,
    }  # fmt: skip
    worth = Worth(accuracy=0.0, auroc=1.0, nll=-0.1)
    searched = search_among(KEY, candidates, worth=worth, **options)
    for row in searched.episodes:
        small = candidates.smaller(Policy.from_plain(row["policy"]))
        probs = jax.nn.softmax(small.f(small.params, data[0]))
        assert row["metrics"]["nll"] == pytest.approx(float(nll(probs, data[1])), rel=1e-4)
        assert row["worth"] == pytest.approx(
            row["metrics"]["auroc"] - 0.1 * row["metrics"]["nll"], rel=1e-5
        )
        assert row["reward"] == pytest.approx(OneSided()(row["worth"], row["ratio"], 1.0))
    assert searched.top == max(searched.episodes, key=lambda row: row["reward"])
    # Another worth is another search, and its folder says so.
    with pytest.raises(Exception, match="worth"):
        search_among(KEY, candidates, worth=Worth(auroc=1.0), **options)
    refined = search_among(
        KEY, candidates, worth=worth, refinement=Refinement(bit_operations, rounds=1, steps=0),
        **options,
    ).refined  # fmt: skip
    assert refined[0]["reward"] == pytest.approx(
        OneSided()(refined[0]["worth"], refined[0]["ratio"], 1.0)
    )


def test_a_metric_may_not_be_called_accuracy():
    f, params, data = small_classifier(32)
    space = SearchSpace.read(f, params, data[0][:1])
    candidates = Candidates(
        f, params, data, data, space, steps=0, batch_size=32,
        metrics=lambda predict, validation: {"accuracy": jnp.float32(1)},
    )  # fmt: skip
    with pytest.raises(ValueError, match="returns 'accuracy', which is measured already"):
        candidates.measured(KEY, space.uncompressed)
