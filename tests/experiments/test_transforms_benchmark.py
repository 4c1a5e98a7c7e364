"""The transforms cost what the same networks written by hand do, and compute the same."""

import numpy as np
import pytest

from experiments.transforms import cost, latency

# Where both round a quantized activation to different sides of a tie, it is one step of 255 apart.
AGREEMENT = {"noisy": 1e-5, "quantized": 2 / 255, "moments": 1e-4}


@pytest.mark.parametrize("transform", cost.TRANSFORMS)
@pytest.mark.parametrize(("net", "batch"), [("lenet5", 10), ("resnet18-imagenet", 1)])
def test_costs_no_more_than_written_by_hand(net, batch, transform):
    row = cost.compare(cost.subject(net, batch), transform)
    assert row["flops_by_hand"] > 0
    assert row["flops_ratio"] <= 1.02, row
    assert row["bytes_ratio"] <= 1.02, row
    assert row["difference"] <= AGREEMENT[transform], row


def test_contestants_agree():
    net = cost.subject("mlp", 2)
    calls = latency.contestants(net)
    drawn = [np.asarray(calls[name]()) for name in latency.DRAWN]
    assert all(len(d) == latency.SAMPLES for d in drawn)
    for other in drawn[1:]:
        np.testing.assert_allclose(other, drawn[0], rtol=1e-4, atol=1e-5)
    propagated, by_hand = calls["moments"](), calls["moments_by_hand"]()
    np.testing.assert_allclose(propagated.mean, by_hand.mean, rtol=1e-4, atol=1e-5)
    # 30 draws of the logits, each of which has the moments that were propagated.
    for name in ("draw_map", "draw_vmap", "drawn_map"):
        error = np.asarray(calls[name]()).mean(0) - propagated.mean
        assert np.max(np.abs(error)) <= 5 * np.max(propagated.std) / latency.SAMPLES**0.5
    timings = latency.measure(net, rounds=1)
    assert {row["method"] for row in timings} == set(calls)
