"""Agents on a problem whose best actions are known; what DDPG learns, by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.search import (
    DDPG,
    Absolute,
    Actions,
    Evolution,
    Exponential,
    Greedy,
    Legal,
    OneSided,
    Outcome,
    Problem,
    Random,
    Sensitivity,
    Space,
    Uniform,
)
from jaxeff.search.features import Running, fixed

pytestmark = pytest.mark.promotes("dtype", "rank")
KEY = jax.random.key(0)


@functools.cache
def problem(of="joint", known=True):
    def f(params, x):
        for name in "abc":
            x = jax.nn.relu(x @ params[name])
        return x

    shapes = {"a": (4, 8), "b": (8, 8), "c": (8, 3)}
    params = {name: jax.random.normal(KEY, shape) for name, shape in shapes.items()}
    space = Space.read(f, params, jnp.ones((1, 4)), legal=Legal(last=True, outputs=1))
    strengths = np.linspace(0, 1, 10, endpoint=False)
    table = np.outer([1.0, 0.1, 10.0], strengths)
    found = Sensitivity(strengths, table, table, table, table[:, 1])
    return Problem(space, Actions(of, round_to=1), found if known else None, 60, 0.3)


def run(agent, problem, reward, episodes, ratio=lambda actions: 1.0):
    state = agent.start(jax.random.fold_in(KEY, 99), problem)
    found = []
    for episode in range(episodes):
        first, second = jax.random.split(jax.random.fold_in(KEY, episode))
        actions, state = agent.propose(first, problem, state)
        assert actions.shape == problem.shape
        assert ((actions >= 0) & (actions <= 1)).all()
        actions = np.asarray(actions)
        value = float(reward(actions))
        found.append((actions, value))
        state = agent.learn(second, problem, state, Outcome(actions, 0.0, ratio(actions), value))
    return found, state


def near(actions):
    return -float(np.abs(actions - 0.7).mean())


def test_rewards_by_hand():
    assert Absolute()(0.9, 0.2, 0.25) == pytest.approx(0.9 - 3 * 0.2)
    assert Absolute(-1.0)(0.9, 0.5, 0.25) == pytest.approx(-0.1)
    assert OneSided()(0.9, 0.2, 0.25) == 0.9
    assert OneSided()(0.9, 0.5, 0.25) == pytest.approx(-2.1)
    assert Exponential()(0.9, 0.5, 0.25) == pytest.approx(0.9 * 2**-0.07)
    with pytest.raises(ValueError, match="weight"):
        Absolute(3.0)


def test_evolution_finds_the_best_actions():
    found, _ = run(Evolution(population=8), problem("pruning"), near, 160)
    first, last = (np.mean([r for _, r in part]) for part in (found[:16], found[-16:]))
    assert last > -0.05 > first


def test_ddpg_climbs():
    """One setting with which it does, found by trying; Galen's own makes far fewer updates."""
    agent = DDPG(
        warm_up=30, updates=20, actor_rate=3e-4, critic_rate=3e-3, critic_decay=1e-3, follow=0.01,
        discount=0.5, decay=0.97,
    )  # fmt: skip
    found, _ = run(agent, problem("pruning"), near, 90)
    warm, last = (np.mean([r for _, r in part]) for part in (found[:30], found[-10:]))
    assert last > warm + 0.1


@pytest.mark.parametrize("noise", ["truncated", "ou"])
def test_ddpg_repeats_itself(noise):
    agent = DDPG(warm_up=1, noise=noise, batch_size=8)
    once, twice = (run(agent, problem(), near, 4)[0] for _ in range(2))
    for (a, _), (b, _) in zip(once, twice, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.allclose(once[2][0], once[3][0])


def test_what_ddpg_remembers():
    """Every step has the episode's reward; the last leads nowhere; the mean reward is followed."""
    agent = DDPG(warm_up=9, batch_size=8)
    found, state = run(agent, problem(), near, 3)
    memory = jax.tree.map(lambda leaf: np.asarray(leaf[0, :9]), state.memory.experience)
    np.testing.assert_allclose(memory["reward"], np.repeat([r for _, r in found], 3), rtol=1e-6)
    np.testing.assert_array_equal(memory["goes_on"], [1, 1, 0] * 3)
    np.testing.assert_array_equal(memory["next"][:2], memory["state"][1:3])
    np.testing.assert_allclose(memory["action"][3:6], found[1][0], rtol=1e-6)
    np.testing.assert_array_equal(memory["state"][1][-3:], found[0][0][0].astype(np.float32))
    mean = found[0][1]
    for _, reward in found[1:]:
        mean += 0.5 * (reward - mean)
    assert float(state.baseline) == pytest.approx(mean, rel=1e-5)
    assert state.features.shape == (3, 47)  # as many numbers as Galen's joint agent sees


def test_agents_are_told_what_concerns_them():
    sizes = {of: fixed(problem(of).space, problem(of).actions, problem(of).known).shape[1]
             for of in ("pruning", "quantization", "joint")}  # fmt: skip
    assert sizes == {"pruning": 17, "quantization": 30, "joint": 40}
    assert fixed(problem("joint", known=False).space, Actions(), None).shape[1] == 8


def test_running_numbers_are_numpys():
    x = np.random.default_rng(0).normal(3, 2, (12, 5)).astype(np.float32)
    x[:, 2] = 1.0
    running = Running.start(5)
    for part in np.split(x, 3):
        running = running.add(jnp.asarray(part))
    np.testing.assert_allclose(running.mean, x.mean(0), rtol=1e-5)
    wanted = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
    np.testing.assert_allclose(running.standardised(jnp.asarray(x)), wanted, atol=1e-4)


def test_uniform_bisects():
    found, _ = run(Uniform(), problem(), near, 12, ratio=lambda actions: 2 - actions.mean() / 0.3)
    assert np.ptp(found[-1][0]) == 0
    assert found[-1][0][0, 0] == pytest.approx(0.3, abs=1e-3)


def test_greedy_takes_what_hurts_least():
    """The middle layer is a tenth as sensitive as the first and a hundredth as the last."""
    found, _ = run(Greedy(), problem("pruning"), near, 6, ratio=lambda actions: 2.0)
    assert found[-1][0][1, 0] > found[-1][0][0, 0]
    grown = np.diff([actions.sum() for actions, _ in found])
    assert (grown > 0).all()
    found, _ = run(Greedy(), problem("pruning"), near, 6, ratio=lambda actions: 0.5)
    steps = [actions.sum() for actions, _ in found]
    assert steps[0] > steps[2] > steps[5] > 0  # smaller steps from the same start
    with pytest.raises(ValueError, match="Greedy goes by sensitivities"):
        Greedy().start(KEY, problem(known=False))


def test_random_is_random():
    found, _ = run(Random(), problem(), near, 30)
    assert np.mean([a for a, _ in found]) == pytest.approx(0.5, abs=4 / (12 * 270) ** 0.5)


def test_an_unknown_strategy():
    with pytest.raises(ValueError, match="evosax has no algorithm 'CMA'"):
        Evolution(algorithm="CMA").start(KEY, problem())
