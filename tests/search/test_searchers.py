"""Agents on a problem whose best actions are known; what DDPG learns, by hand."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff import search
from jaxeff.search._ddpg import Running, fixed_features
from jaxeff.search._knapsack import _solved

pytestmark = pytest.mark.promotes("dtype", "rank")
KEY = jax.random.key(0)


@functools.cache
def problem(of="both", known=True):
    def f(params, x):
        for name in "abc":
            x = jax.nn.relu(x @ params[name])
        return x

    shapes = {"a": (4, 8), "b": (8, 8), "c": (8, 3)}
    params = {name: jax.random.normal(KEY, shape) for name, shape in shapes.items()}
    space = search.SearchSpace.read(
        f, params, jnp.ones((1, 4)), few_bit_layers=search.FewBitLayers(last=True, outputs=1)
    )
    strengths = np.linspace(0, 1, 10, endpoint=False)
    table = np.outer([1.0, 0.1, 10.0], strengths)
    found = search.CompressionSensitivity(strengths, table, table, table, table[:, 1])
    return search.SearchProblem(
        space, search.Actions(of, round_to=1), found if known else None, 60, 0.3
    )


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
        state = agent.learn(
            second, problem, state, search.EpisodeResult(actions, 0.0, ratio(actions), value)
        )
    return found, state


def near(actions):
    return -float(np.abs(actions - 0.7).mean())


def test_rewards_by_hand():
    assert search.Absolute()(0.9, 0.2, 0.25) == pytest.approx(0.9 - 3 * 0.2)
    assert search.Absolute(-1.0)(0.9, 0.5, 0.25) == pytest.approx(-0.1)
    assert search.OneSided()(0.9, 0.2, 0.25) == 0.9
    assert search.OneSided()(0.9, 0.5, 0.25) == pytest.approx(-2.1)
    assert search.Exponential()(0.9, 0.5, 0.25) == pytest.approx(0.9 * 2**-0.07)
    with pytest.raises(ValueError, match="weight"):
        search.Absolute(3.0)


@pytest.mark.slow
def test_evolution_finds_the_best_actions():
    searched, _ = run(search.Evolution(population=8), problem("pruning"), near, 160)
    first, last = (np.mean([r for _, r in part]) for part in (searched[:16], searched[-16:]))
    assert last > -0.05 > first


@pytest.mark.slow
def test_ddpg_climbs():
    """One setting with which it does, found by trying; Galen's own makes far fewer updates."""
    agent = search.DDPG(
        warm_up=30, updates=20, actor_rate=3e-4, critic_rate=3e-3, critic_decay=1e-3, follow=0.01,
        discount=0.5, decay=0.97,
    )  # fmt: skip
    searched, _ = run(agent, problem("pruning"), near, 90)
    warm, last = (np.mean([r for _, r in part]) for part in (searched[:30], searched[-10:]))
    assert last > warm + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["truncated", "ou"])
def test_ddpg_repeats_itself(noise):
    agent = search.DDPG(warm_up=1, noise=noise, batch_size=8)
    once, twice = (run(agent, problem(), near, 4)[0] for _ in range(2))
    for (a, _), (b, _) in zip(once, twice, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.allclose(once[2][0], once[3][0])


@pytest.mark.slow
def test_what_ddpg_remembers():
    """Every step has the episode's reward; the last leads nowhere; the mean reward is followed."""
    agent = search.DDPG(warm_up=9, batch_size=8)
    searched, state = run(agent, problem(), near, 3)
    memory = jax.tree.map(lambda leaf: np.asarray(leaf[0, :9]), state.memory.experience)
    np.testing.assert_allclose(memory["reward"], np.repeat([r for _, r in searched], 3), rtol=1e-6)
    np.testing.assert_array_equal(memory["goes_on"], [1, 1, 0] * 3)
    np.testing.assert_array_equal(memory["next"][:2], memory["state"][1:3])
    np.testing.assert_allclose(memory["action"][3:6], searched[1][0], rtol=1e-6)
    np.testing.assert_array_equal(memory["state"][1][-3:], searched[0][0][0].astype(np.float32))
    mean = searched[0][1]
    for _, reward in searched[1:]:
        mean += 0.5 * (reward - mean)
    assert float(state.baseline) == pytest.approx(mean, rel=1e-5)
    assert state.features.shape == (3, 47)  # as many numbers as Galen's joint agent sees


def test_agents_are_told_what_concerns_them():
    sizes = {of: fixed_features(problem(of).space, problem(of).actions, problem(of).known).shape[1]
             for of in ("pruning", "quantization", "both")}  # fmt: skip
    assert sizes == {"pruning": 17, "quantization": 30, "both": 40}
    assert fixed_features(problem("both", known=False).space, search.Actions(), None).shape[1] == 8


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
    searched, _ = run(
        search.UniformSearch(), problem(), near, 12, ratio=lambda actions: 2 - actions.mean() / 0.3
    )
    assert np.ptp(searched[-1][0]) == 0
    assert searched[-1][0][0, 0] == pytest.approx(0.3, abs=1e-3)


def test_greedy_takes_what_hurts_least():
    """The middle layer is a tenth as sensitive as the first and a hundredth as the last."""
    searched, _ = run(search.Greedy(), problem("pruning"), near, 6, ratio=lambda actions: 2.0)
    assert searched[-1][0][1, 0] > searched[-1][0][0, 0]
    grown = np.diff([actions.sum() for actions, _ in searched])
    assert (grown > 0).all()
    searched, _ = run(search.Greedy(), problem("pruning"), near, 4, ratio=lambda actions: 0.5)
    steps = [np.flatnonzero(actions).tolist() for actions, _ in searched]
    assert steps == [[1], [0], [], []]  # what was too much isn't taken again
    with pytest.raises(ValueError, match="Greedy goes by sensitivities"):
        search.Greedy().start(KEY, problem(known=False))


@pytest.mark.slow
def test_ddpg_learns_after_its_warm_up():
    agent = search.DDPG(warm_up=2, batch_size=8)
    states = [run(agent, problem(), near, n)[1] for n in (0, 2, 3)]
    first, warm, after = (jax.tree.leaves(state.actor) for state in states)
    assert all(np.array_equal(a, b) for a, b in zip(first, warm, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(warm, after, strict=True))


def operations(problem):
    """Bit operations as a latency that is looked up, with the ratio that a search would measure."""
    space = problem.space

    def time(policy):
        return float(space.bops(policy).sum())

    known = dataclasses.replace(problem, uncompressed_latency=time(space.uncompressed), time=time)

    def ratio(actions):
        policy = known.actions.policy(space, jnp.asarray(actions, jnp.float32))
        return time(policy) / (known.target * known.uncompressed_latency)

    return known, ratio


@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "target", "within"),
    [("pruning", 0.3, 0.25), ("quantization", 0.03, 0.1), ("both", 0.03, 0.1)],
)
def test_a_knapsack_lands_on_its_target(of, target, within):
    """Layers save more together than apart, which the measurements tell it."""
    known, ratio = operations(dataclasses.replace(problem(of), target=target))
    searched, _ = run(search.Knapsack(levels=8), known, near, 8, ratio)
    off = [abs(ratio(actions) - 1) for actions, _ in searched]
    assert min(off) < within
    best = searched[int(np.argmin(off))][0].sum(1)
    assert best[1] >= best[0]  # a tenth as sensitive
    assert best[1] >= best[2]
    if of == "pruning":  # bits of layers multiply: what one saves, it saves beside others too
        assert min(off[1:]) <= off[0]  # each is another than those before
    with pytest.raises(ValueError, match="Knapsack goes by sensitivities"):
        search.Knapsack().start(KEY, problem(known=False))


def test_a_knapsack_is_solved_exactly():
    """The best one first, then the next best, and those that come to the same are one."""
    rng = np.random.default_rng(0)
    damages, costs = rng.uniform(size=(3, 4)), -rng.uniform(size=(3, 4))
    duplicates = np.array([[0, 0, 2, 3], [0, 1, 2, 2], [0, 1, 2, 3]])
    layers = np.arange(3)
    for budget in (-0.5, -1.0, -1.5):
        sums = {
            tuple(duplicates[layers, ks]): (sum(damages[layers, ks]), ks)
            for ks in sorted(
                itertools.product(range(4), repeat=3), key=lambda ks: -sum(damages[layers, ks])
            )
            if sum(costs[layers, ks]) <= budget
        }
        tried = []
        for _, best in sorted(sums.values())[:6]:
            chosen = _solved(damages, costs, budget, duplicates, tried)
            assert tuple(chosen) == best
            tried.append(duplicates[layers, chosen])
        tried = [np.array(numbers) for numbers in sums]
        rest = [ks for ks in itertools.product(range(4), repeat=3)
                if tuple(duplicates[layers, ks]) not in sums]  # fmt: skip
        if rest:  # the cheapest of those beyond the budget
            least = min(rest, key=lambda ks: sum(costs[layers, ks]))
            assert tuple(_solved(damages, costs, budget, duplicates, tried)) == least
    assert rest


def test_a_knapsack_near_its_budget():
    """Others come after those that leave little of it."""
    damages, costs = np.array([[0.0, 1.0, 2.0, 3.0]]), np.array([[-9.0, -5.0, -4.2, -4.1]])
    duplicates, tried, found = np.arange(4)[None], [], []
    for _ in range(5):
        (chosen,) = _solved(damages, costs, -4.0, duplicates, tried, 0.5)
        found.append(int(chosen))
        tried.append(np.array([chosen]))
    assert found == [0, 2, 3, 1, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("of", "target"), [("both", 0.03), ("quantization", 0.03)])
def test_a_knapsack_repeats_nothing(of, target):
    known, ratio = operations(dataclasses.replace(problem(of), target=target))
    searched, _ = run(search.Knapsack(), known, near, 20, ratio)
    policies = {str(known.actions.policy(known.space, actions).plain()) for actions, _ in searched}
    assert len(policies) == 20
    assert np.quantile([abs(ratio(actions) - 1) for actions, _ in searched[5:]], 0.5) < 0.1


def test_a_knapsack_of_few_policies():
    """Where all were tried, they come again."""
    known, ratio = operations(problem("pruning"))
    agent = search.Knapsack(levels=2)
    searched, _ = run(agent, known, near, 6, ratio)
    policies = [str(known.actions.policy(known.space, actions).plain()) for actions, _ in searched]
    assert len(set(policies[:4])) == 4
    assert len(set(policies)) == 4


def test_a_knapsack_lands_above_eight_bits():
    """Some layers stay in float where eight bits everywhere are faster than asked."""
    known, ratio = operations(dataclasses.replace(problem("quantization"), target=0.3))
    searched, _ = run(search.Knapsack(), known, near, 10, ratio)
    eight = np.full(known.shape, known.actions.eight_below, np.float32)
    assert ratio(eight) < 0.5
    assert min(abs(ratio(actions) - 1) for actions, _ in searched) < 0.25


@pytest.mark.parametrize(("first", "column"), [("pruning", 0), ("quantization", 1)])
def test_one_method_after_the_other(first, column):
    agent = search.Sequential(first, search.RandomSearch())
    searched, state = run(agent, problem(), near, 60)
    early, late = searched[:30], searched[30:]
    rest = [c for c in range(3) if c not in ((0,) if column == 0 else (1, 2))]
    assert all((actions[:, rest] == 0).all() for actions, _ in early)
    mine = [c for c in range(3) if c not in rest]
    assert all((actions[:, mine] == state.best[:, mine]).all() for actions, _ in late)
    assert len({tuple(actions[:, rest].ravel()) for actions, _ in late}) == 30
    with pytest.raises(ValueError, match="methods='both', not 'pruning'"):
        agent.start(KEY, problem("pruning"))


def test_the_first_method_goes_halfway():
    """Its target is the square root of the whole one, and its rewards are by that."""
    agent = search.Sequential("pruning", search.RandomSearch())
    known = problem()
    state = agent.start(KEY, known)
    actions, state = agent.propose(KEY, known, state)
    ratio = known.target**-0.5  # exactly at the first stage's target
    state = agent.learn(
        KEY, known, state, search.EpisodeResult(np.asarray(actions), 0.8, ratio, -9.0)
    )
    assert state.reward == pytest.approx(0.8)


def test_random_is_random():
    searched, _ = run(search.RandomSearch(), problem(), near, 30)
    assert np.mean([a for a, _ in searched]) == pytest.approx(0.5, abs=4 / (12 * 270) ** 0.5)


def test_an_unknown_strategy():
    with pytest.raises(ValueError, match="evosax has no algorithm 'CMA'"):
        search.Evolution(algorithm="CMA").start(KEY, problem())
