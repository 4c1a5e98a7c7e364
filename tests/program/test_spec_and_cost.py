"""Patterns select sites, errors list them; counts are the published ones."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxeff.functional import functional
from jaxeff.nn import VGG11, LeNet5, ResNet18
from jaxeff.program import SpecError, cost, resolve, sites, summary, trace


@pytest.fixture(scope="module")
def program():
    f, params = functional(LeNet5(rngs=nnx.Rngs(0)))
    return trace(f, params, jnp.ones((1, 28, 28, 1)))


def test_first_match_wins_and_none_leaves_alone(program):
    found = resolve({"fc3": None, "fc*": 1, "*:linear": 2}, program)
    assert found == {"fc1": 1, "fc2": 1, "conv1": 2, "conv2": 2}


def test_a_star_means_computation_not_plumbing(program):
    assert "reshape" not in resolve({"*": 1}, program)
    assert resolve({"*:shape": 1}, program) == {"reshape": 1}
    assert resolve({"reshape": 1}, program) == {"reshape": 1}


def test_a_name_matches_every_use_of_a_shared_layer():
    w = {"fc": {"w": jnp.eye(3)}}
    shared = trace(lambda p, x: jnp.tanh(x @ p["fc"]["w"]) @ p["fc"]["w"], w, jnp.ones((2, 3)))
    assert resolve({"fc": 1}, shared) == {"fc": 1, "fc#1": 1}
    assert resolve({"fc#1": 1}, shared) == {"fc#1": 1}


def test_a_name_is_one_of_several_unnamed_layers(program):
    assert resolve({"relu": 1, "max_pool_1": 2}, program) == {"relu": 1, "max_pool_1": 2}
    each = {"relu": 0, "relu_1": 1, "relu_2": 2, "relu_3": 3}
    assert resolve(each, program) == each
    assert resolve({"relu*": 1}, program) == dict.fromkeys(each, 1)


@pytest.mark.parametrize("pattern", ["convolution*", "conv1:pooling", "CONV1", ""])
def test_a_pattern_without_a_match_lists_the_sites(program, pattern):
    with pytest.raises(SpecError, match=r"matches no site.*conv1:linear"):
        resolve({pattern: 1}, program)


@pytest.mark.parametrize("pattern", ["conv1:convolution", 3])
def test_nonsense_patterns_are_errors(program, pattern):
    with pytest.raises(SpecError, match=r"kind|strings"):
        resolve({pattern: 1}, program)


def counts(make, shape):
    model = nnx.eval_shape(make)
    graph, state = nnx.split(model)
    params = jax.tree.map(
        lambda s: jnp.zeros(s.shape, s.dtype), state, is_leaf=lambda s: hasattr(s, "shape")
    )
    model = nnx.merge(graph, params)
    model.eval()
    f, values = functional(model)
    total = cost(f, values, jnp.zeros(shape))
    return total.params, total.macs


def test_lenet5_counts_are_the_published_ones():
    make = lambda: LeNet5(in_channels=3, size=32, padding="VALID", rngs=nnx.Rngs(0))  # noqa: E731
    assert counts(make, (1, 32, 32, 3)) == (62_006, 651_720)


@pytest.mark.parametrize(("stem", "millions"), [("imagenet", 37.0), ("cifar", 555.4)])
def test_resnet18_macs_are_the_published_ones(stem, millions):
    macs = counts(lambda: ResNet18(stem=stem, rngs=nnx.Rngs(0)), (1, 32, 32, 3))[1]
    assert macs / 1e6 == pytest.approx(millions, abs=0.05)


def test_macs_scale_with_the_batch_and_bops_with_the_bits():
    f, params = functional(LeNet5(rngs=nnx.Rngs(0)))
    one, four = (cost(f, params, jnp.ones((n, 28, 28, 1))) for n in (1, 4))
    assert four.macs == 4 * one.macs
    assert one.bops == one.macs * 32 * 32
    eight = cost(f, params, jnp.ones((1, 28, 28, 1)), bits={"conv1": (8, 4)})
    conv1 = next(row for row in one.layers if row.site == "conv1").macs
    assert one.bops - eight.bops == conv1 * (32 * 32 - 8 * 4)


def test_a_scan_counts_every_iteration():
    def f(p, x):
        return jax.lax.scan(lambda c, _: (c @ p["w"], None), x, length=5)[0]

    total = cost(f, {"w": jnp.eye(3)}, jnp.ones((2, 3)))
    assert (total.params, total.macs) == (9, 5 * 2 * 3 * 3)


def test_every_parameter_is_counted_once():
    w = jnp.ones((3, 3))

    def f(p, x):
        return (x @ p["a"]["w"]) @ p["a"]["w"] + p["loose"]

    params = {"a": {"w": w}, "loose": jnp.ones(3), "unused": jnp.ones(7)}
    assert cost(f, params, jnp.ones((1, 3))).params == 9 + 3 + 7


def test_summary_is_a_table_people_can_read():
    f, params = functional(LeNet5(rngs=nnx.Rngs(0)))
    x = jnp.ones((1, 28, 28, 1))
    text = str(summary(f, params, x))
    assert all(site in text for site in sites(f, params, x))
    assert "61,706" in text
    assert "total" in text


def test_vgg11_macs_are_the_published_ones_with_its_thousand_class_head():
    macs = counts(lambda: VGG11(num_classes=1000, rngs=nnx.Rngs(0)), (1, 32, 32, 3))[1]
    assert macs / 1e6 == pytest.approx(276.4, abs=0.05)
