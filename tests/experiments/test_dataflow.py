"""The study of a dataflow pipeline: its cycles, its front, and checks that can fail."""

import dataclasses

import jax
import pytest

from experiments import classifiers
from experiments import dataflow as study
from experiments.harness import Report

ACCURACY = {(1, 1): 0.3, (1, 4): 0.8, (1, 8): 0.75, (4, 1): 0.4, (4, 4): 0.85, (4, 8): 0.85,
            (8, 1): 0.4, (8, 4): 0.84, (8, 8): 0.9}  # fmt: skip


def report(accuracy=ACCURACY, size="default"):
    rows = [
        {"part": "bits", "subject": "a", "seed": 0, "weight_bits": w, "activation_bits": a,
         "trained": right, "bops": 1.0, "cycles": 100.0 * (w + a)}
        for (w, a), right in accuracy.items()
    ]  # fmt: skip
    return Report("dataflow", size, {"subjects": [{"test_images": 2000}]}, rows, {})


def test_the_front_is_what_nothing_beats():
    found = [(row["weights"], row["activations"]) for row in study.front(report())]
    assert found == [(8, 8), (4, 4), (1, 4), (1, 1)]
    for row in study.front(report()):
        assert row["throughput"] == pytest.approx(16 / (row["weights"] + row["activations"]))


def test_judging():
    written = report()
    study.STUDY.judge(written)
    assert [check["passed"] for check in written.checks] == [True, True, True, True, True]
    flat = report({**dict.fromkeys(ACCURACY, 0.8), (8, 8): 0.81})
    study.STUDY.judge(flat)
    # All but the fastest and the most accurate are beaten, and nothing costs accuracy.
    assert [check["passed"] for check in flat.checks] == [True, False, False, False, True]


def test_fewer_bits_take_no_more_cycles():
    subject = study.SIZES["fast"].subjects[0]
    small = dataclasses.replace(subject, images=32, test_images=32)
    network, images = classifiers.build(small)
    params, state = network.init(jax.random.key(0))
    sites = ("conv1", "conv2", "fc1", "fc2", "fc3")
    model = classifiers.Trained(small, network, images, params, state, 0, sites)
    cycles = {b: study.cycles_of(model, b, b, 5000) for b in (1, 4, 8)}
    assert cycles[1] < cycles[4] < cycles[8]
    assert study.cycles_of(model, 1, 4, 5000) <= study.cycles_of(model, 4, 4, 5000)
