"""The walking-noise study: its findings are those of its rows, and it runs from end to end."""

from dataclasses import replace

import pytest

from experiments.harness import Refused, Report
from experiments.walking_noise import findings, recipe
from experiments.walking_noise.__main__ import STUDY

SIZES = recipe.SIZES


def row(case, kind, where, site, level, accuracy, **more):
    return {
        "case": case, "kind": kind, "where": where, "site": site, "level": level, "seed": 0,
        "accuracy": accuracy, "diverged": False, "weight_rms": 1.0,
        "batch_norm": case.endswith("-bn"), **more,
    }  # fmt: skip


def curve(case, fall):
    levels = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
    values = [0.9 if x < fall else 0.5 if x == fall else 0.1 for x in levels]
    return [row(case, "add", "global", "global", x, y) for x, y in zip(levels, values, strict=True)]


def passed(rows, tables=()):
    report = Report("walking_noise", "default", {}, rows, {"repetition": tables})
    STUDY.judge(report)
    return {check["name"]: check["passed"] for check in report.checks}


@pytest.mark.parametrize(("bn", "none", "lower"), [(0.2, 0.8, True), (0.8, 0.2, False)])
def test_batch_norm_is_judged_by_midpoints(bn, none, lower):
    (result,) = passed(curve("net-bn", bn) + curve("net", none)).values()
    assert result is lower


@pytest.mark.parametrize("kept", [True, False])
def test_what_survives_huge_noise_is_judged_by_its_accuracy(kept):
    rows = [
        row("net-bn", "mul", "layers", site, level, 0.9 if level < 10 or good else 0.1)
        for site, good in (("relu", kept), ("fc1", False))
        for level in (1.0, 1e6, 1e8)
    ]
    ((name, result),) = passed(rows).items()
    assert result is kept
    assert not kept or "relu" in name


def test_a_diverged_replicate_counts_as_guessing():
    rows = [row("net-bn", "mul", "layers", "relu", 1.0, 0.9)]
    rows += [row("net-bn", "mul", "layers", "relu", 1e6, float("nan"), diverged=True)]
    assert list(passed(rows).values()) == [False]


def test_weights_that_grow_where_nothing_is_learned_do_not_count():
    levels = ((0.1, 0.9, 1.0), (1.0, 0.8, 1.5), (10.0, 0.1, 9.0))
    rows = [
        row("net", "add", "layers", "fc1", level, accuracy, weight_rms=rms)
        for level, accuracy, rms in levels
    ]
    assert findings.weight_growth(rows, "net") == {"fc1": 1.5}
    # The least noise alone says nothing of growth.
    assert findings.weight_growth(rows[:1] + rows[2:], "net") == {}


def grown_rows(case, growths):
    return [
        row(case, "add", "layers", f"fc{i}", level, accuracy, weight_rms=rms)
        for i, growth in enumerate(growths)
        for level, accuracy, rms in ((0.1, 0.9, 1.0), (1.0, 0.8, growth))
    ]


@pytest.mark.parametrize(
    ("without", "normed", "grows", "suppressed"),
    [
        ([1.5, 1.6], [1.0, 1.1], True, True),
        ([1.1, 1.2], [1.5, 1.6], True, False),
        ([0.5, 3.0], [1.0, 1.0], False, False),  # one slot alone
    ],
)
def test_growth_and_its_suppression_are_judged_by_their_errors(without, normed, grows, suppressed):
    checks = passed(grown_rows("net", without) + grown_rows("net-bn", normed))
    growth = {
        name: result for name, result in checks.items() if "growth" in name or "grows" in name
    }
    assert [*growth.values()] == [grows, suppressed]


@pytest.mark.parametrize(("strong", "kept"), [(0.85, True), (0.3, False)])
def test_orders_are_judged_where_additive_noise_is_ten_times_stronger(strong, kept):
    rows = [
        row("net-bn", kind, "fc2", "fc2", add, accuracy, add=add, mul=1.0)
        for kind, accuracies in (
            ("mul_add", (0.9, 0.88, strong, 0.2)),  # more than ten times isn't claimed
            ("add_mul", (0.6, 0.5, 0.2, 0.1)),
        )
        for add, accuracy in zip((0.1, 1.0, 10.0, 20.0), accuracies, strict=True)
    ]
    gain, stronger = passed(rows).items()
    assert gain[1] is True
    assert "ten times" in stronger[0]
    assert stronger[1] is kept


def table(guided, std=0.01, seeds=3):
    return {
        "case": "net", "sigma": 0.35, "guided": guided, "guided_std": std, "uniform": 0.7,
        "uniform_std": std, "guided_by_evaluation": 0.7, "guided_by_evaluation_std": std,
        "source_uniform": 0.714, "source_guided": 0.806, "seeds": seeds,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("guided", "std", "seeds", "held"),
    [
        (0.78, 0.01, 3, [True, False]),
        (0.73, 0.01, 3, [False, False]),  # less than half of the thesis' gain
        (0.78, 0.08, 3, [False, False]),  # within the noise of the seeds
        (0.78, 0.0, 1, []),  # one seed has no error
    ],
)
def test_guided_repetition_is_judged_by_its_error_and_the_sources_gain(guided, std, seeds, held):
    checks = passed([], [table(guided, std, seeds)])
    assert [*checks.values()] == held


@pytest.mark.parametrize("size", SIZES)
def test_sizes(size):
    settings = SIZES[size]
    names = [sweep.name for sweep in settings.sweeps]
    assert len(set(names)) == len(names)
    for table in settings.repetitions:
        assert sum(table.guided) == 2 * len(table.guided)  # the uniform budget


@pytest.mark.slow
def test_the_source_is_run_in_full():
    full = SIZES["full"]
    assert len(full.sweeps) == 6 * 2 * 4 + 2
    assert len(full.repetitions) == 6
    lenet = [s for s in full.sweeps if s.name == "lenet5-cifar-10-add-global"]
    assert [(len(s.levels), s.seeds, s.epochs) for s in lenet] == [(17, 10, 300)]


def test_all_that_is_trained_can_be_shortened():
    own = SIZES["full"]
    sweeps, tables = replace(own, only=("mlp-mnist",), epochs=3).chosen()
    assert {one.epochs for one in (*sweeps, *tables)} == {3}
    assert {one.seeds for one in sweeps} == {5, 10}  # those of the size


def test_a_sweep_that_does_not_exist_is_named():
    with pytest.raises(Refused, match="mlp-digits-bn-add-global"):
        replace(recipe.SIZES["fast"], only=("vgg",)).chosen()


def test_a_walk_brings_the_row_that_it_guides():
    """Without its walk a row is not guided as the thesis' is; other sweeps of it aren't needed."""
    settings = replace(SIZES["default"], only=("mlp-mnist-add-layers",))
    sweeps, rows = settings.chosen()
    assert [sweep.name for sweep in sweeps] == ["mlp-mnist-add-layers"]
    assert [str(row.case) for row in rows] == ["mlp-mnist"]
