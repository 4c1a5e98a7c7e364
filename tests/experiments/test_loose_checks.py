"""Checks of several studies that noise, or a run that says little, must not pass."""

import pytest

from experiments.__main__ import load
from experiments.harness import Report


def checks(module, rows, config, extra=None, size="default"):
    study = load(module)
    report = Report(study.name, size, config, rows, extra or {})
    study.judge(report)
    return {check["name"]: check["passed"] for check in report.checks}


def searches(name, rewards, **columns):
    return [
        {"part": "search", "searcher": name, "target": 0.2, "seed": seed, "reward": reward,
         "accuracy": reward, "ratio": 1.0, "macs": 1, "bops": 1, "seconds": 1,
         "channels": [0.5] * 4, "weights": [4] * 4, "activations": [4] * 4, **columns}
        for seed, reward in enumerate(rewards)
    ]  # fmt: skip


WHOLE = {"part": "float", "macs": 1, "bops": 1, "validation": 0.9, "accuracy": 0.9}


@pytest.mark.parametrize(
    ("pruning", "held"),
    [([0.80, 0.81, 0.79], True), ([0.7, 0.9, 0.84], False), ([0.80], None)],
)
def test_a_search_gains_by_two_errors_over_seeds(pruning, held):
    joint = [0.88, 0.90, 0.89][: len(pruning)]
    rows = [WHOLE, *searches("joint", joint), *searches("pruning", pruning)]
    verdicts = checks("galen", rows, {"targets": [0.2]})
    assert verdicts.get("joint agent at 0.2: reward beyond pruning's") is held


@pytest.mark.parametrize(
    ("weights", "held"),
    [([[8, 2, 2, 8]] * 3, [False, True]), ([[8, 2, 2, 8], [2, 8, 8, 2]], [False, False])],
)
def test_policies_are_judged_by_their_spread_over_seeds(weights, held):
    rows = searches("quantization", [0.8] * len(weights))
    for row, bits in zip(rows, weights, strict=True):
        row["weights"] = bits
    verdicts = checks("galen", [WHOLE, *rows], {"targets": [0.2]})
    assert [passed for name, passed in verdicts.items() if "two errors" in name] == held


@pytest.mark.parametrize(
    ("gains", "held"), [([9, 8, 8], True), ([3, 3, 3], False), ([1, 20, 8], False), ([9], None)]
)
def test_retraining_gains_by_two_errors_over_chips(gains, held):
    from experiments.analog import source

    rows = [
        {"kind": "training", "data": "d", "device": device, "strategy": name, "epochs": 1,
         "software": 90.0, "on_chip": 20.0 + (gain if name.endswith("incremental") else 0.0)}
        for device, gain in enumerate(gains)
        for name in source.SOFTWARE_ROWS
    ]  # fmt: skip
    verdicts = checks("analog", rows, {"data": "d"})
    passed_checks = [
        passed for name, passed in verdicts.items() if name.startswith("representation, incr")
    ]
    assert passed_checks == ([] if held is None else [held])


@pytest.mark.parametrize(("learned", "held"), [(0.60, True), (0.52, False)])
def test_learned_steps_gain_more_than_the_images_tell(learned, held):
    subject = {"network": "net", "data": "set", "test_images": 500}
    shared = {"subject": "net-set", "seed": 0, "weight_bits": 2, "activation_bits": 2,
              "untrained": 0.1, "family": "uniform"}  # fmt: skip
    rows = [
        {"part": "float", "subject": "net-set", "seed": 0, "accuracy": 0.9},
        {"part": "methods", "method": "lsq 2", "trained": learned, **shared},
        {"part": "methods", "method": "fixed 2", "trained": 0.5, **shared},
    ]
    verdicts = checks("compression", rows, {"subjects": [subject]})
    assert [passed for name, passed in verdicts.items() if "learned steps gain" in name] == [held]


def test_methods_that_say_nothing_of_certainty_beside_one_network_fail():
    def rows(method, nll, auroc, by=""):
        return [
            {"method": method, "by": by, "seed": seed, "accuracy": 0.95, "ece": 0.1,
             "nll": nll + 0.01 * seed, "auroc": auroc, "gradients_over_one": 1, "time_over_one": 1}
            for seed in range(3)
        ]  # fmt: skip

    given = rows("one network", 0.3, 0.8) + rows("deep ensemble", 0.2, 0.9)
    given += rows("SVI", 0.3, 0.85, "draws") + rows("SWAG", 0.25, 0.91, "draws")
    held = [*checks("beyond.certainty", given, {}).values()]
    assert held == [True, False, True, False, True]


@pytest.mark.parametrize(("shuffled", "held"), [(4.0, True), (2.0, False)])
def test_order_is_judged_against_one_that_is_destroyed(shuffled, held):
    """Times that are permuted alike still tell the order: they judge nothing."""
    rows = [
        {"kind": "order", "form": "synthetic", "device": device, "mse_time": 1.5,
         "ratio_permuted": 1.0, "ratio_shuffled": 1.5 / shuffled, "ratio_none": 1.5 / shuffled}
        for device in range(3)
    ]  # fmt: skip
    verdicts = checks("analog", rows, {"data": "d"})
    judged = {name: ok for name, ok in verdicts.items() if name.startswith("MSE in the true")}
    assert [*judged.values()] == [held, held]
    assert not any("permuted" in name for name in judged)


def test_always_warning_passes_no_check():
    rows = [
        {"network": f"net {i}", "noise": "3 %", "status": status}
        for i, status in enumerate(["right"] * 2 + ["false alarm"] * 2 + ["told"])
    ]
    verdicts = checks("beyond.moment_gaps", rows, {})
    (alarms,) = (passed for name, passed in verdicts.items() if "false alarms" in name)
    assert alarms is False


@pytest.mark.parametrize(("gap", "held"), [(-0.3, True), (0.01, True), (0.3, False)])
def test_a_wide_spread_makes_nothing_as_good(gap, held):
    from experiments.beyond.selective.recipe import no_worse

    claim = no_worse("{data}: AURC", lambda report: report.rows, "aurc", 1)
    report = Report("selective", "default", {}, [{"data": "d", "aurc": gap, "aurc tie": 1.0}])
    claim(report)
    assert [check["passed"] for check in report.checks] == [held]


def searched_for_an_ethos(seed, gained, share=0.5):
    shared = {"part": "searches", "seed": seed, "of weights": 0.0}
    return [
        {"way": way, "target": target, "share": at, "accuracy": accuracy, **shared}
        for way, target, at, accuracy in (
            ("whole", 1.0, 1.0, 0.9), ("MACs", 0.5, 0.5, 0.7), ("cycles", 0.5, share, 0.7 + gained)
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("gained", "share", "held"),
    [
        ([0.05, 0.06, 0.05], 0.5, True),
        ([0.01, 0.09, -0.02], 0.5, False),
        ([-0.05, -0.06, -0.05], 0.5, False),
        # What more cycles bring is no gain of being told them.
        ([0.04, 0.05, 0.03], 0.6, False),
    ],
)
def test_being_told_cycles_gains_by_two_errors_over_seeds(gained, share, held):
    rows = [row for i, gain in enumerate(gained) for row in searched_for_an_ethos(i, gain, share)]
    verdicts = checks("beyond.ethos_search", rows, {})
    assert [ok for name, ok in verdicts.items() if "mean of targets" in name] == [held, held]


@pytest.mark.parametrize(("exponent", "held"), [(0.5, True), (-0.5, False)])
def test_a_count_that_orders_networks_otherwise_misleads(exponent, held):
    rows = [
        {"network": "drawn", "macs share": share, "share": share**exponent}
        for share in (0.2, 0.4, 0.6, 0.8)
    ]
    verdicts = checks("beyond.ethos_search", rows, {})
    assert [ok for name, ok in verdicts.items() if "pairs of random" in name] == [held]
