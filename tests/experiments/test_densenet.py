"""The narrow DenseNet that stands in for the thesis' one of a hundred layers."""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.compression.__main__ import STUDY
from experiments.densenet import GROWTH, LAYERS, STAGES, DenseNet


def test_layers_read_all_before_them():
    net = nnx.eval_shape(lambda: DenseNet(10, 3, rngs=nnx.Rngs(0)))
    kernels = [layer.conv.kernel.shape for layer in [*net.narrow, *net.wide, *net.joins]]
    assert 1 + len(kernels) + 1 == 22
    assert len(net.narrow) == STAGES * LAYERS
    read = [layer.conv.kernel.shape[2] for layer in net.narrow]
    for stage in range(STAGES):
        widths = read[stage * LAYERS : (stage + 1) * LAYERS]
        assert widths == [widths[0] + i * GROWTH for i in range(LAYERS)]
        if stage:
            assert widths[0] == (read[stage * LAYERS - 1] + GROWTH) // 2


def test_it_says_ten_logits_an_image():
    def logits(x):
        return DenseNet(10, 3, rngs=nnx.Rngs(0))(x)

    assert jax.eval_shape(logits, jnp.zeros((2, 32, 32, 3))).shape == (2, 10)


def test_the_study_takes_it_where_it_is_asked_for():
    settings = STUDY.sizes["default"]
    assert STUDY.settle(settings) == settings
    (subject,) = STUDY.settle(dataclasses.replace(settings, densenet=True)).subjects
    assert subject.network == "densenet-22"
