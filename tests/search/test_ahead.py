"""Candidates that are known in advance are measured at once, with the results of one by one."""

import jax
import pytest

from jaxeff.nn import small_classifier
from jaxeff.search import (
    DDPG,
    Actions,
    Evolution,
    LatencyError,
    RandomSearch,
    UniformSearch,
    bit_operations,
    search,
)

pytestmark = pytest.mark.promotes("dtype", "rank")
F, PARAMS, DATA = small_classifier(64)


class Farm:
    """Three boards that count bit operations."""

    boards = 3

    def __init__(self, fails=lambda policy: False):
        self.groups, self.fails = [], fails

    def __call__(self, candidate):
        if self.fails(candidate.policy):
            raise LatencyError("a board is gone")
        return bit_operations(candidate)

    def measure_many(self, candidates):
        self.groups.append(len(candidates))
        found = []
        for candidate in candidates:
            try:
                found.append(self(candidate))
            except LatencyError as error:
                found.append(error)
        return found


def run(latency, agent, folder=None, episodes=7):
    return search(
        jax.random.key(0), F, PARAMS, DATA, latency=latency, target=0.3, agent=agent,
        actions=Actions(round_to=4), episodes=episodes, steps=0, batch_size=8, progress=False,
        sensitivities=False, folder=folder,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "groups"),
    [
        (RandomSearch(), [3, 3]),  # the last one is alone
        (Evolution(population=5), [3, 2, 2]),  # within a generation
        (DDPG(warm_up=5, batch_size=8), [3, 2]),  # before it has learnt
        (UniformSearch(), []),  # each depends on the one before
    ],
    ids=["random", "evolution", "ddpg", "uniform"],
)
def test_results_are_those_of_one_by_one(agent, groups):
    farm = Farm()
    searched = run(farm, agent)
    assert farm.groups == groups
    assert searched.episodes == run(bit_operations, agent).episodes


@pytest.mark.slow
def test_what_is_lost_costs_one_measurement():
    alone = run(bit_operations, RandomSearch())
    lost = alone.episodes[1]["policy"]
    searched = run(Farm(lambda policy: policy.plain() == lost), RandomSearch())
    for ours, theirs in zip(searched.episodes, alone.episodes, strict=True):
        if ours["policy"] == lost:
            assert ours["message"] == "a board is gone"
        else:
            assert ours == theirs


@pytest.mark.slow
def test_what_is_kept_is_not_measured_again(tmp_path):
    run(bit_operations, RandomSearch(), tmp_path, episodes=7)
    farm = Farm()
    run(farm, RandomSearch(), tmp_path, episodes=7)
    assert farm.groups == []
