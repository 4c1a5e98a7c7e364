"""Batch norms folded into the layers before them: exactness, names, and what stays."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.compression import Int, fold_batch_norm, quantized
from jaxeff.core import functional
from jaxeff.nn import LeNet5, LinenLeNet5
from jaxeff.nn.layers import Block
from jaxeff.program import trace


def _shaken(model):
    """A model in inference whose batch norms have statistics and parameters of all kinds."""
    for i, (_, norm) in enumerate(nnx.iter_graph(model)):
        if isinstance(norm, nnx.BatchNorm):
            keys = jax.random.split(jax.random.key(i), 4)
            shape = norm.mean.get_value().shape
            norm.mean.set_value(jax.random.normal(keys[0], shape))
            norm.var.set_value(jax.random.uniform(keys[1], shape, minval=0.5, maxval=2.0))
            norm.scale.set_value(1 + 0.3 * jax.random.normal(keys[2], shape))
            norm.bias.set_value(jax.random.normal(keys[3], shape))
    model.eval()
    return model


def _agree(a, b):
    np.testing.assert_allclose(a, b, atol=1e-5 * float(jnp.abs(b).max()))


def _sites(f, *args):
    return {layer.site for layer in trace(f, *args).sites}


@pytest.mark.slow
def test_lenet():
    f, params = functional(_shaken(LeNet5(batch_norm=True, rngs=nnx.Rngs(0))))
    x = jax.random.normal(jax.random.key(1), (2, 28, 28, 1))
    g, folded, _ = fold_batch_norm(f, params, x)
    _agree(g(folded, x), f(params, x))
    assert sorted(folded) == ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert _sites(g, folded, x) == _sites(f, params, x) - {"bn1", "bn2", "bn3", "bn4"}
    # Any batch, jit, gradients, and a transform of the result.
    more = jnp.concatenate([x, x, x])
    _agree(jax.jit(g)(folded, more), f(params, more))
    gradient = jax.grad(lambda p: g(p, x).sum())(folded)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))
    assert quantized(g, {"*:linear": Int(8, symmetric=False)})(folded, x).shape == (2, 10)


@pytest.mark.slow
def test_layers_without_a_bias_get_one():
    block = _shaken(Block(4, 8, 2, True, rngs=nnx.Rngs(0)))
    f, params = functional(block)
    x = jax.random.normal(jax.random.key(1), (2, 6, 6, 4))
    g, folded, _ = fold_batch_norm(f, params, x)
    _agree(g(folded, x), f(params, x))
    assert {n: sorted(p) for n, p in folded.items()} == {
        n: ["bias", "kernel"] for n in ("conv1", "conv2", "shortcut")
    }
    program = trace(g, folded, x)
    conv = next(layer for layer in program.sites if layer.site == "conv1")
    assert conv.kind == "linear"
    assert [conv.inputs[i].path for i in conv.biases] == ["conv1/bias"]


@pytest.mark.slow
@pytest.mark.parametrize("mutable", [False, True])
def test_linen_and_state_as_an_argument(mutable):
    model = LinenLeNet5(batch_norm=True)
    x = jax.random.normal(jax.random.key(1), (2, 28, 28, 1))
    variables = model.init(jax.random.key(0), x)
    stats = jax.tree.map(lambda a: a - 0.2, variables["batch_stats"])
    variables = {**variables, "batch_stats": stats}
    f, params, *state = functional(model, variables, mutable=mutable)
    g, folded, _ = fold_batch_norm(f, params, (*state, x))
    ours, theirs = g(folded, *state, x), f(params, *state, x)
    if mutable:
        jax.tree.map(np.testing.assert_array_equal, ours[1], theirs[1])
        ours, theirs = ours[0], theirs[0]
    assert jnp.abs(theirs).max() > 0
    _agree(ours, theirs)
    assert "bn1" not in folded


@pytest.mark.slow
def test_heads_depthwise_and_missing_parameters():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.depthwise = nnx.Conv(
                4, 4, (3, 3), feature_group_count=4, use_bias=False, rngs=rngs
            )
            self.bn = nnx.BatchNorm(4, use_scale=False, use_bias=False, rngs=rngs)
            self.bn.scale = self.bn.bias = None
            self.heads = nnx.LinearGeneral(4, (2, 3), use_bias=False, rngs=rngs)
            self.bn2 = nnx.BatchNorm(3, axis=-1, rngs=rngs)

        def __call__(self, x):
            return self.bn2(self.heads(self.bn(self.depthwise(x))))

    model = Model(nnx.Rngs(0))
    model.bn.mean.set_value(jnp.arange(4.0))
    model.bn.var.set_value(1 + jnp.arange(4.0))
    model.bn2.mean.set_value(jnp.arange(3.0))
    model.eval()
    f, params = functional(model)
    x = jax.random.normal(jax.random.key(1), (2, 5, 5, 4))
    g, folded, _ = fold_batch_norm(f, params, x)
    _agree(g(folded, x), f(params, x))
    assert folded["depthwise"]["bias"].shape == (4,)
    # The second norm's channels are an axis of the heads': each entry has numbers of its own.
    assert sorted(folded) == ["depthwise", "heads"]
    assert folded["heads"]["bias"].shape == (2, 3)


@pytest.mark.slow
def test_what_stays():
    x = jax.random.normal(jax.random.key(1), (4, 6))

    class Model(nn.Module):
        norm: str

        @nn.compact
        def __call__(self, x):
            y = nn.Dense(5)(x)
            if self.norm == "layer":
                return nn.LayerNorm()(y)
            if self.norm == "read":
                return nn.BatchNorm(True)(y) + jnp.tanh(y)
            return nn.BatchNorm(True)(nn.relu(y))

    for norm in ("layer", "read", "relu"):
        model = Model(norm)
        f, params = functional(model, model.init(jax.random.key(0), x))
        g, same, _ = fold_batch_norm(f, params, x)
        assert g is f
        assert same is params


def test_mistakes_are_named():
    def f(params, x):
        w, scale = params
        return (x @ w) * scale + 1.0

    params = (jnp.eye(3), jnp.arange(1.0, 4.0).reshape(1, 3))
    x = jnp.ones((2, 3))
    with pytest.raises(TypeError, match="must be a nested dict"):
        fold_batch_norm(f, params, x)
    broken = (jnp.eye(3), jnp.full((1, 3), jnp.nan))
    with pytest.raises(ValueError, match="numbers that aren't finite"):
        fold_batch_norm(f, broken, x)
