"""Refinement: the best candidate is measured end to end and moved until it meets the target."""

import jax
import numpy as np
import pytest

from jaxeff.nn import small_classifier
from jaxeff.search import Actions, RandomSearch, Refinement, bit_operations, search
from jaxeff.search._refinement import Course
from tests.search.lost_boards import loses

pytestmark = pytest.mark.promotes("dtype", "rank")
F, PARAMS, DATA = small_classifier(256)


class Looked:
    """A latency that is looked up."""

    looked_up = True

    def __call__(self, candidate):
        return bit_operations(candidate)


class Slower:
    """What a table doesn't know: candidates take a third more than it says, the whole doesn't."""

    def __init__(self):
        self.calls = 0

    def __call__(self, candidate):
        self.calls += 1
        counted = bit_operations(candidate)
        uncompressed = bit_operations(
            type(candidate)(candidate.space.uncompressed, candidate.space, None)
        )
        return counted if counted == uncompressed else 4 / 3 * counted


def run(refinement, folder=None, **changed):
    settings = {
        "latency": Looked(), "target": 0.3, "agent": RandomSearch(), "actions": Actions(round_to=2),
        "episodes": 6, "steps": 0, "batch_size": 32, "sensitivities": False, "progress": False,
        "refinement": refinement, "folder": folder,
    }  # fmt: skip
    return search(jax.random.key(0), F, PARAMS, DATA, **settings | changed)


@pytest.mark.slow
def test_what_is_returned_meets_the_target():
    """The table is a third off, and what is returned within 5 % of what was asked for."""
    searched = run(Refinement(Slower()))
    assert abs(searched.top["ratio"] - 1) <= 0.05
    for row in searched.refined:
        assert row["ratio"] == pytest.approx(4 / 3 * row["predicted"])
        assert row["reward"] == pytest.approx(row["accuracy"] - 3 * abs(row["ratio"] - 1))
    rewards = [row["reward"] for row in searched.refined]
    assert searched.best.plain() == searched.refined[int(np.argmax(rewards))]["policy"]
    assert "measured end to end" in str(searched)
    alone = run(None)
    assert alone.refined == []
    assert rewards[-1] > alone.top["accuracy"] - 3 * abs(4 / 3 * alone.top["ratio"] - 1)


@pytest.mark.slow
def test_a_latency_that_costs_is_not_asked_for_neighbours():
    """Without a table, the candidates are those of the episodes."""
    slower = Slower()
    searched = run(Refinement(slower), latency=bit_operations)
    assert slower.calls == 1 + len(searched.refined)
    tried = [row["policy"] for row in searched.episodes]
    assert all(row["policy"] in tried for row in searched.refined)


@pytest.mark.slow
def test_refinements_are_kept(tmp_path):
    first = run(Refinement(Slower()), tmp_path)
    slower = Slower()
    again = run(Refinement(slower), tmp_path)
    assert slower.calls == 0
    assert again.refined == first.refined
    assert again.best.plain() == first.best.plain()


@pytest.mark.slow
def test_boards_that_are_lost():
    searched = run(Refinement(loses(lambda call: call == 2)))
    assert searched.refined[0]["message"] == "the board is gone"
    assert "ratio" in searched.refined[1]

    with pytest.raises(RuntimeError, match="from end to end; the last said: the board is gone"):
        run(Refinement(loses(lambda call: True)))


@pytest.mark.slow
@pytest.mark.parametrize("of", ["pruning", "quantization", "both"])
def test_steps_are_legal(of):
    """What lies a step away is what actions could have said."""
    searched = run(Refinement(Slower(), rounds=2), actions=Actions(of, 2), target=0.6)
    for row in searched.refined:
        policy, sizes = row["policy"], searched.space.sizes
        assert all(n % 2 == 0 or n == size for n, size in zip(policy["kept"], sizes, strict=True))
        few = np.asarray(searched.space.few_bits(np.array(policy["kept"])))
        mixed = np.array(policy["datatypes"]) == 2
        assert not (mixed & ~few).any()
        if of == "pruning":
            assert set(policy["weights"]) == {32}
        if of == "quantization":
            assert policy["kept"] == sizes.tolist()


def test_counts():
    with pytest.raises(ValueError, match="Refinement: rounds"):
        Refinement(bit_operations, rounds=0)


def test_corrections_are_those_of_similar_policies():
    """What one policy took says little of another that has few layers in common with it."""

    def row(weights, predicted, **more):
        plain = {"kept": [4], "datatypes": [1, 1, 1], "weights": weights, "activations": [8, 8, 8]}
        return {"policy": plain, "predicted": predicted, **more}

    few, many = row([2, 2, 2], 0.9), row([8, 8, 4], 1.0)
    rows = [row([2, 2, 4], 1.0, ratio=1.2), row([8, 8, 8], 1.0, ratio=0.9), few, many]
    course = Course(*[None] * 8, rows)
    assert course.corrected(few) == pytest.approx(0.9 * 1.2)
    assert course.corrected(many) == pytest.approx(0.9)
    assert course.corrected(rows[0]) == 1.2
    alone = Course(*[None] * 8, [few])
    assert alone.corrected(few) == 0.9
