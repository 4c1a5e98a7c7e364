"""Rounds of pruning and training, killed or not, come to the same numbers; saved models."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxeff
from jaxeff.pruning import (
    Budget,
    Plan,
    PlanError,
    Prune,
    channels,
    load_pruned,
    prune_iteratively,
    prune_plan,
    pruned,
    save_pruned,
    scores,
)
from jaxeff.pruning._iterative import lifted
from jaxeff.store import CheckpointError
from jaxeff.training import cross_entropy

pytestmark = pytest.mark.promotes("dtype", "rank")
KEY = jax.random.key(0)
X = jax.random.normal(KEY, (64, 6))
DATA = X, (X[:, 0] > 0).astype(jnp.int32) + (X[:, 1] > 0)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.first, self.norm = nnx.Linear(6, 12, rngs=rngs), nnx.BatchNorm(12, rngs=rngs)
        self.second, self.head = nnx.Linear(12, 10, rngs=rngs), nnx.Linear(10, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(jax.nn.relu(self.second(jax.nn.relu(self.norm(self.first(x))))))


def plain(params, x):
    return jax.nn.relu(jax.nn.relu(x @ params["a"]) @ params["b"]) @ params["c"]


@functools.cache
def drawn():
    rng = np.random.default_rng(0)
    shapes = {"a": (6, 12), "b": (12, 10), "c": (10, 3)}
    return {n: jnp.asarray(rng.normal(size=s), jnp.float32) for n, s in shapes.items()}


def run(folder=None, **changed):
    settings = {
        "spec": {"*": Prune(0.9), "c": None},
        "budgets": [Budget(macs=0.7), Budget(macs=0.4)],
        "loss": cross_entropy,
        "optimizer": optax.adam(1e-2),
        "epochs": 3,
        "batch_size": 16,
        "progress": False,
        **changed,
    }
    return prune_iteratively(KEY, plain, drawn(), DATA, folder=folder, **settings)


def cross_entropy_of(temperature, f):
    return cross_entropy(lambda params, x: f(params, x) * temperature)


class Killed(Exception):
    pass


def killer(after):
    """Ends a run after so many epochs in all, or with no epoch, before a round trains."""
    seen = []

    def count(*_):
        seen.append(1)
        if len(seen) == after:
            raise Killed

    return count


@functools.cache
def whole():
    return run()


@pytest.mark.process
@pytest.mark.parametrize(("event", "after"), [
    ("on_round", 1), ("on_epoch", 2), ("on_round", 2), ("on_epoch", 5),
])  # fmt: skip
def test_a_killed_run_comes_to_the_same_numbers(tmp_path, event, after):
    with pytest.raises(Killed):
        run(tmp_path, **{event: killer(after)})
    again = run(tmp_path)
    for ours, theirs in zip(
        jax.tree.leaves(again.params), jax.tree.leaves(whole().params), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    for name, keep in whole().plan.keep.items():
        np.testing.assert_array_equal(again.plan.keep[name], keep)
    assert again.rounds == whole().rounds


@pytest.mark.slow
def test_rounds_meet_budgets_of_the_whole_model_and_are_nested():
    plans = []
    iterated = run(on_round=lambda i, plan: plans.append(plan))
    full = jaxeff.cost(plain, drawn(), X[:1]).macs
    for plan, share, record in zip(plans, (0.7, 0.4), iterated.rounds, strict=True):
        left = jaxeff.cost(pruned(plain, plan), plan.shrink(drawn()), X[:1]).macs / full
        assert share - 0.15 < left <= share
        np.testing.assert_allclose(record["macs"], left)
        assert len(record["history"]) == 3
    for name, keep in plans[1].keep.items():
        assert (np.asarray(plans[0].keep[name]) >= np.asarray(keep)).all()
    assert iterated.f(iterated.params, X).shape == (64, 3)
    assert jax.tree.map(jnp.shape, iterated.params) == jax.tree.map(
        jnp.shape, iterated.plan.shrink(drawn())
    )


@pytest.mark.slow
def test_scores_are_of_the_model_that_is_left_and_measures_of_the_whole():
    seen = []

    def size(plan):
        seen.append(plan)
        return sum(w.size for w in jax.tree.leaves(plan.shrink(drawn())))

    iterated = run(
        budgets=[Budget(measured=0.8, measure=size), Budget(measured=0.5, measure=size)],
        score=lambda g: scores.reconstruction(g, X),
        epochs=1,
    )
    weight_count = sum(w.size for w in jax.tree.leaves(drawn()))
    assert size(iterated.plan) <= 0.5 * weight_count
    assert all(plan.channels is seen[0].channels for plan in seen)


@pytest.mark.slow
def test_a_model_with_batch_statistics(tmp_path):
    f, params, state = jaxeff.functional(Net(nnx.Rngs(0)), mutable=True)
    iterated = prune_iteratively(
        KEY, f, params, DATA, {"*:linear": Prune(0.8)},
        [Budget(parameters=0.8), Budget(parameters=0.5)],
        loss=functools.partial(cross_entropy, mutable=True), optimizer=optax.adam(1e-2), epochs=1,
        batch_size=16, state=state, folder=tmp_path, progress=False,
    )  # fmt: skip
    logits, _ = iterated.f(iterated.params, iterated.state, X)
    assert logits.shape == (64, 3)
    sizes = [sum(w.size for w in jax.tree.leaves(p)) for p in (params, iterated.params)]
    assert sizes[1] <= 0.5 * sizes[0]


@pytest.mark.slow
def test_folders_of_other_runs_are_refused(tmp_path):
    run(tmp_path, epochs=1)
    with pytest.raises(CheckpointError, match="of another run"):
        run(tmp_path, epochs=1, budgets=[Budget(macs=0.7), Budget(macs=0.3)])
    with pytest.raises(CheckpointError, match="of another run"):
        run(tmp_path, epochs=1, settings={"rate": 1})
    with pytest.raises(
        CheckpointError, match=r"the optimizer differs: it computes with -0\.01 only"
    ):
        run(tmp_path, epochs=1, optimizer=optax.adam(2e-2))
    smoothed = functools.partial(cross_entropy_of, 0.375)
    with pytest.raises(CheckpointError, match="the loss differs"):
        run(tmp_path, epochs=1, loss=smoothed)
    with pytest.raises(ValueError, match="at least one budget"):
        run(budgets=[])


def test_two_plans_are_one():
    coupled = channels(plain, drawn(), X)
    first = Plan({"a:1": np.arange(12) < 8}, coupled)
    g, small = pruned(plain, first), first.shrink(drawn())
    further = Plan({"a:1": np.arange(8) % 2 == 0, "b:1": np.arange(10) > 4}, channels(g, small, X))
    both = lifted(first, further)
    assert np.flatnonzero(both.keep["a:1"]).tolist() == [0, 2, 4, 6]
    ours = pruned(plain, both)(both.shrink(drawn()), X)
    theirs = pruned(g, further)(further.shrink(small), X)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    with pytest.raises(PlanError, match=r"has 8 channels left, and the further plan 12"):
        lifted(first, Plan({"a:1": np.arange(12) < 3}, coupled))


def test_a_smaller_model_is_a_folder(tmp_path):
    plan = prune_plan(plain, drawn(), X, {"a": Prune(0.5)})
    small, coupled = plan.shrink(drawn()), channels(plain, drawn(), X)
    folder = save_pruned(tmp_path / "model", plan, small)
    again, numbers = load_pruned(folder, coupled, drawn())
    np.testing.assert_array_equal(again.keep["a:1"], plan.keep["a:1"])
    jax.tree.map(np.testing.assert_array_equal, numbers, small)
    # An optimizer's state as well, and the one that is there is replaced.
    adam = optax.adam(1e-3)
    save_pruned(folder, plan, (small, adam.init(small)))
    _, (_, state) = load_pruned(folder, coupled, (drawn(), adam.init(drawn())))
    assert jax.tree.map(jnp.shape, state) == jax.tree.map(jnp.shape, adam.init(small))
    assert sorted(p.name for p in folder.iterdir()) == ["params.safetensors", "plan.json"]


def test_damaged_and_foreign_folders_are_refused(tmp_path):
    plan = prune_plan(plain, drawn(), X, {"a": Prune(0.5)})
    small, coupled = plan.shrink(drawn()), channels(plain, drawn(), X)
    with pytest.raises(
        PlanError, match=r"a has shape \(6, 12\), but what the plan leaves .*\(6, 6\)"
    ):
        save_pruned(tmp_path / "model", plan, drawn())
    assert not list(tmp_path.iterdir())
    folder = save_pruned(tmp_path / "model", plan, small)
    other = prune_plan(plain, drawn(), X, {"a": Prune(0.5)}, score=scores.random(KEY))
    text = (folder / "plan.json").read_text()
    other.save(folder / "plan.json")
    with pytest.raises(PlanError, match="belongs to another plan"):
        load_pruned(folder, coupled, drawn())
    for damaged in (
        text[:40],
        "[]",
        "[" * 100_000,
        json.dumps({**json.loads(text), "keep": {"a:1": ["x"]}}),
        "\xff",
    ):
        (folder / "plan.json").write_bytes(damaged.encode("latin1"))
        with pytest.raises(PlanError, match="no plan, or damaged"):
            load_pruned(folder, coupled, drawn())
    (folder / "plan.json").write_text(json.dumps({**json.loads(text), "keep": {"a:1": [99]}}))
    with pytest.raises(PlanError, match="has channels 0 to 11 only"):
        load_pruned(folder, coupled, drawn())
    (folder / "plan.json").write_text(text)
    (folder / "params.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="damaged"):
        load_pruned(folder, coupled, drawn())
    wide = {**drawn(), "c": jnp.ones((10, 4))}
    with pytest.raises(PlanError, match="plan of another model"):
        load_pruned(folder, channels(plain, wide, X), wide)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError):
        save_pruned(tmp_path / "mine", plan, small)
