"""What a policy decides about a model, against the models that it leaves."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.nn import ResNet8
from jaxeff.pruning import pruned
from jaxeff.search import FLOAT, FP32, INT8, MIX, Actions, FewBitLayers, Policy, SearchSpace

X = jnp.zeros((1, 8, 8, 3))


@functools.cache
def resnet():
    model = ResNet8(10, 3, widths=(8, 16, 32), rngs=nnx.Rngs(0))
    model.eval()
    f, params = jaxeff.functional(model)
    return f, params, SearchSpace.read(f, params, X, few_bit_layers=FewBitLayers(inputs=8))


@pytest.mark.slow
def test_who_decides():
    """The first layer that makes a group decides about it; what adds to it follows."""
    _, _, space = resnet()
    decided = [space.groups[s.group] for s in space.sites if s.group >= 0]
    assert len(set(decided)) == len(decided) == len(space.groups)
    by_name = {site.name: site for site in space.sites}
    assert by_name["stage1/conv2"].group == -1  # adds to what conv1 makes
    assert by_name["conv1"].group == 0
    assert by_name["fc"].group == -1  # makes the result
    assert space.sites[-1].name == "fc"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_the_smaller_model(seed):
    f, params, space = resnet()
    rng = np.random.default_rng(seed)
    kept = rng.integers(1, space.sizes + 1).astype(np.int32)
    policy = Policy(
        kept,
        *(space.uncompressed.datatypes, space.uncompressed.weights, space.uncompressed.activations),
    )
    plan = space.plan(policy)
    g, small = pruned(f, plan), plan.shrink(params)
    rows = {row.site: row for row in jaxeff.cost(g, small, X).layers}
    np.testing.assert_allclose(
        space.macs(policy), [rows[name].macs for name in space.names], rtol=1e-6
    )
    np.testing.assert_allclose(
        space.weights(policy), [rows[name].weights for name in space.names], rtol=1e-6
    )
    shapes = [small[s.name.split("/")[0]] for s in space.sites if "/" not in s.name]
    widths = [leaf["kernel"].shape[-1] for leaf in shapes]
    outputs = dict(zip(space.names, np.asarray(space.outputs(kept)).tolist(), strict=True))
    assert [outputs["conv1"], outputs["fc"]] == widths


@pytest.mark.slow
def test_channels_go_in_the_order_of_their_scores():
    _, params, space = resnet()
    name = space.groups[0]
    policy = Policy(np.ones_like(space.sizes), *list(vars(space.uncompressed).values())[1:])
    norms = np.abs(params["conv1"]["kernel"]).sum((0, 1, 2))
    norms += np.abs(params["stage1"]["conv2"]["kernel"]).sum((0, 1, 2))
    (stays,) = np.flatnonzero(space.plan(policy).keep[name])
    assert stays == norms.argmax()


@pytest.mark.slow
def test_few_bits_are_legal_by_the_channels_that_are_left():
    _, _, space = resnet()
    whole = dict(zip(space.names, np.asarray(space.few_bits(space.sizes)).tolist(), strict=True))
    assert not whole["conv1"]  # three input channels
    assert whole["stage2/conv2"]
    assert not whole["fc"]  # the last
    kept = space.sizes.copy()
    kept[0] = 7
    left = dict(zip(space.names, np.asarray(space.few_bits(kept)).tolist(), strict=True))
    assert not left["stage1/conv1"]
    assert whole["stage1/conv1"]
    assert not left["stage2/conv1"]


def space_of_two():
    def f(params, x):
        return jax.nn.relu(x @ params["a"]) @ params["b"]

    params = {"a": jnp.ones((4, 64)), "b": jnp.ones((64, 3))}
    return SearchSpace.read(
        f, params, jnp.ones((1, 4)), few_bit_layers=FewBitLayers(last=True, outputs=1)
    )


@pytest.mark.slow
def test_actions_by_hand():
    """The formulas of Klein's thesis, section 4.2.3, with C = 64, R = 32 or 1, B = 8."""
    space = space_of_two()
    kept = lambda p, r: int(Actions(round_to=r).kept(space, jnp.array([p, 0.0]))[0])  # noqa: E731
    assert [kept(p, 1) for p in (0.0, 0.25, 0.5, 0.99, 1.0)] == [64, 49, 33, 1, 1]
    assert [kept(p, 32) for p in (0.0, 0.4, 0.5, 0.51, 1.0)] == [64, 64, 64, 32, 32]
    assert [kept(p, 48) for p in (0.0, 0.5)] == [64, 64]  # one block of 48, or whole
    bits = Actions().width(np.array([0.5, 0.5625, 0.75, 0.99, 1.0]))
    assert bits.tolist() == [8, 8, 5, 1, 1]
    policy = Actions("quantization").policy(space, jnp.array([[0.2, 0.1], [0.75, 0.3]]))
    assert policy.datatypes.tolist() == [FP32, MIX]
    assert policy.weights.tolist() == [FLOAT, 5]
    assert policy.activations.tolist() == [FLOAT, 8]  # below the threshold: the most bits
    policy = Actions("quantization").policy(space, jnp.array([[0.3, 0.5], [0.0, 0.21]]))
    assert policy.datatypes.tolist() == [INT8, INT8]
    assert policy.weights.tolist() == policy.activations.tolist() == [8, 8]


def test_illegal_few_bits_are_eight():
    two = space_of_two()
    space = SearchSpace(two.channels, two.sites, two.groups, two.ranks, FewBitLayers(last=False))
    policy = Actions("quantization").policy(space, jnp.ones((2, 2)))
    assert policy.datatypes.tolist() == [MIX, INT8]
    assert policy.weights.tolist() == [1, 8]


def test_pruning_leaves_bits_and_quantization_channels():
    space = space_of_two()
    policy = Actions("pruning").policy(space, jnp.ones((2, 1)))
    assert (policy.weights == FLOAT).all()
    assert policy.kept.tolist() == [1]
    assert Actions("quantization").policy(space, jnp.ones((2, 2))).kept.tolist() == [64]


def test_policies_are_kept_as_text():
    uncompressed = space_of_two().uncompressed
    again = Policy.from_plain(uncompressed.plain())
    assert jax.tree.all(jax.tree.map(np.array_equal, uncompressed, again))


def test_mistakes():
    with pytest.raises(ValueError, match="no layer to compress"):
        SearchSpace.read(lambda p, x: x + p, jnp.ones(()), X)
    with pytest.raises(ValueError, match="no action would mean eight bits"):
        Actions(float_below=0.6)
    with pytest.raises(ValueError, match=r"Actions\.methods"):
        Actions("everything")
