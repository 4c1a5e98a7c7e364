"""Whole searches: kept, gone on with, refused, and what they come to."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxeff.core import InterruptedRun
from jaxeff.nn import small_classifier
from jaxeff.search import DDPG, Actions, RandomSearch, bit_operations, search
from jaxeff.store import CheckpointError
from tests.search.lost_boards import loses

pytestmark = pytest.mark.promotes("dtype", "rank")
KEY = jax.random.key(0)
F, PARAMS, DATA = small_classifier(256)
AGENT = DDPG(warm_up=2, batch_size=8)


def run(folder=None, **changed):
    settings = {
        "latency": bit_operations, "target": 0.3, "agent": AGENT,
        "actions": Actions(round_to=4), "episodes": 4, "steps": 1, "batch_size": 32,
        "folder": folder, "images": 32, "progress": False,
    }  # fmt: skip
    return search(KEY, F, PARAMS, DATA, **settings | changed)


@pytest.mark.process
def test_killed_at_any_moment(tmp_path):
    """What was measured isn't measured again, and the numbers are those of one run."""
    uninterrupted = run()
    calls = []

    def dies(candidate):
        calls.append(candidate.policy)
        if len(calls) == 5:  # the whole model, the strongest policy, then episodes
            raise KeyboardInterrupt
        return bit_operations(candidate)

    with pytest.raises(InterruptedRun, match="the same call goes on") as error:
        run(tmp_path, latency=dies)
    episodes = error.value.result.episodes
    assert 0 < len(episodes) < len(uninterrupted.episodes)
    assert episodes == uninterrupted.episodes[: len(episodes)]
    path = tmp_path / "episodes.jsonl"
    path.write_text(path.read_text() + '{"task": ["epis')  # cut while it was written
    calls.clear()

    def counted(candidate):
        calls.append(candidate.policy)
        return bit_operations(candidate)

    again = run(tmp_path, latency=counted)
    assert len(calls) == 2
    assert again.episodes == json.loads(json.dumps(uninterrupted.episodes))
    assert again.best.plain() == uninterrupted.best.plain()
    assert "asked 0.3" in str(again)
    logits = again.smaller.f(again.smaller.params, DATA[0][:2])
    assert logits.shape == (2, 10)


@pytest.mark.slow
def test_other_searches_are_refused(tmp_path):
    run(tmp_path, agent=RandomSearch(), episodes=1, sensitivities=False)
    with pytest.raises(CheckpointError, match="target"):
        run(tmp_path, agent=RandomSearch(), episodes=1, target=0.4)
    with pytest.raises(
        CheckpointError, match=r"the optimizer differs: it computes with .*0\.05 only"
    ):
        run(tmp_path, agent=RandomSearch(), episodes=1, optimizer=optax.sgd(0.03, momentum=0.9))
    other = jax.tree.map(lambda p: p.at[..., 0].add(1e-3), PARAMS)
    with pytest.raises(CheckpointError, match=r"start\.params.* has other values"):
        search(
            KEY, F, other, DATA, latency=bit_operations, target=0.3, agent=RandomSearch(),
            episodes=1, actions=Actions(round_to=4), steps=1, batch_size=32, folder=tmp_path,
            images=32, sensitivities=False, progress=False,
        )  # fmt: skip
    (tmp_path / "episodes.jsonl").write_text("nonsense\n")
    with pytest.raises(CheckpointError):
        run(tmp_path, agent=RandomSearch(), episodes=1)


@pytest.mark.slow
def test_lost_boards_cost_a_measurement():
    searched = run(latency=loses(lambda call: call == 4), episodes=3, sensitivities=False)
    assert [("reward" in row) for row in searched.episodes] == [True, False, True]
    assert searched.episodes[1]["message"] == "the board is gone"
    with pytest.raises(RuntimeError, match="the board is gone"):
        run(latency=loses(lambda call: call > 2), episodes=2, sensitivities=False)


@pytest.mark.slow
def test_an_agent_that_diverges(tmp_path):
    """What was measured before is kept."""

    class Diverges(RandomSearch):
        def propose(self, key, problem, state):
            actions, state = super().propose(key, problem, state)
            return actions * (jnp.nan if (tmp_path / "now").exists() else 1.0), state

        def learn(self, *args):
            (tmp_path / "now").touch()

    with pytest.raises(FloatingPointError, match="diverged before episode 1; lower its rates"):
        run(tmp_path, agent=Diverges(), sensitivities=False)
    assert '["episode", 0]' in (tmp_path / "episodes.jsonl").read_text()


@pytest.mark.slow
def test_the_best_has_the_highest_reward():
    searched = run(agent=RandomSearch(), sensitivities=False)
    rewards = [row["reward"] for row in searched.episodes]
    assert searched.best.plain() == searched.episodes[int(np.argmax(rewards))]["policy"]
    for row in searched.episodes:
        wanted = row["accuracy"] - 3 * abs(
            row["latency"] / (0.3 * searched.uncompressed_latency) - 1
        )
        assert row["reward"] == pytest.approx(wanted)


@pytest.mark.slow
def test_validation_of_sorted_data_has_all_classes(monkeypatch):
    """None of the data is both trained on and measured, and the key decides about each."""
    order = np.argsort(np.asarray(DATA[1]), kind="stable")
    x, y = (np.asarray(leaf)[order] for leaf in DATA)
    splits = []

    def seen(key, candidates, **_):
        splits.append((candidates.data, candidates.validation))

    monkeypatch.setattr("jaxeff.search._search.search_among", seen)
    for key in (KEY, KEY, jax.random.key(1)):
        search(key, F, PARAMS, (x, y), latency=bit_operations, target=0.3, batch_size=32,
               sensitivities=False)  # fmt: skip
    (trained, measured), again, other = splits
    assert (len(trained[1]), len(measured[1])) == (204, 52)
    assert set(measured[1]) == set(trained[1]) == set(y)
    both = np.concatenate([trained[0], measured[0]]).reshape(256, -1)
    np.testing.assert_array_equal(np.sort(both, 0), np.sort(x.reshape(256, -1), 0))
    assert (x[:, None] == measured[0][None]).reshape(256, 52, -1).all(-1).any(0).all()
    np.testing.assert_array_equal(measured[0], again[1][0])
    assert not np.array_equal(measured[0], other[1][0])


def test_mistakes():
    with pytest.raises(ValueError, match="target"):
        run(target=0.0)
    with pytest.raises(ValueError, match=r"can't be reached: the strongest policy .* leaves 0\.0"):
        run(target=1e-4)
    with pytest.raises(ValueError, match="latency"):
        run(latency=lambda candidate: float("nan"))
    linear = {"w": jax.numpy.ones((784, 10))}
    with pytest.raises(ValueError, match="no channel of the model can be pruned"):
        search(
            KEY, lambda p, x: x.reshape(len(x), -1) @ p["w"], linear, DATA, target=0.5,
            latency=bit_operations, actions=Actions("pruning"),
        )  # fmt: skip
