"""The transforms cost what the same networks written by hand do, and compute the same."""

import functools

import jax
import pytest
from flax import nnx

from experiments.beyond.transforms import cost
from experiments.contests import forward_passes
from jaxeff.nn.layers import _layers as residual

# Where both round a quantized activation to different sides of a tie, it is one step of 255 apart.
AGREEMENT = {"noisy": 1e-5, "quantized": 2 / 255, "moments": 1e-4}


class FirstStages(nnx.Module):
    """ResNet-18's stem, its first two stages at half their width, and its last layer.

    Every kind of layer and of connection that ResNet-18 has is here; the study has all of it.
    """

    def __init__(self, rngs):
        self.conv1, self.bn1 = (
            residual.conv(3, 32, 7, 2, True, rngs=rngs),
            nnx.BatchNorm(32, rngs=rngs),
        )
        of = functools.partial(residual.Block, batch_norm=True, rngs=rngs)
        self.stage1 = nnx.List([of(32, 32, 1), of(32, 32, 1)])
        self.stage2 = nnx.List([of(32, 64, 2), of(64, 64, 1)])
        self.fc = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x):
        x = jax.nn.relu(self.bn1(self.conv1(x)))
        x = nnx.max_pool(x, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))
        for block in (*self.stage1, *self.stage2):
            x = block(x)
        return self.fc(x.mean((-3, -2)))


@pytest.mark.slow
@pytest.mark.parametrize("transform", cost.TRANSFORMS)
@pytest.mark.parametrize(("net", "batch"), [("lenet5", 10), ("first stages of resnet18", 1)])
def test_costs_no_more_than_written_by_hand(net, batch, transform, monkeypatch):
    stages = (FirstStages, forward_passes.resnet18, (8, 8, 3))
    monkeypatch.setitem(cost.NETS, "first stages of resnet18", stages)
    row = cost.compare(cost.subject(net, batch), transform)
    assert row["flops_by_hand"] > 0
    assert row["flops_ratio"] <= 1.02, row
    assert row["bytes_ratio"] <= 1.02, row
    assert row["difference"] <= AGREEMENT[transform], row
