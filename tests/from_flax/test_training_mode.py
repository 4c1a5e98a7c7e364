"""A model in training mode: what a function freezes is said, and there is a way to have it."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

import jaxeff
from jaxeff.core import functional
from jaxeff.core._from_jax import TrainingModeWarning
from jaxeff.training import cross_entropy, fit


class Net(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([nnx.Linear(4, 64, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)])
        self.bn = nnx.BatchNorm(64, rngs=rngs, momentum=0.5)
        self.idle = nnx.Dropout(0.0, rngs=rngs)
        self.last = nnx.Linear(64, 3, rngs=rngs)

    def hidden(self, x):
        return self.idle(self.blocks[1](self.blocks[0](x)))

    def __call__(self, x):
        return self.last(self.bn(self.hidden(x)))


@pytest.fixture
def x():
    return jax.random.normal(jax.random.key(1), (8, 4))


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dropout(0.5, deterministic=not train)(nn.Dense(64, name="fc")(x))
        return nn.BatchNorm(use_running_average=not train, momentum=0.5, name="bn")(x)


@pytest.fixture
def net():
    return Net(nnx.Rngs(0))


def test_what_an_nnx_model_freezes_is_said_when_it_is_read(net):
    with pytest.warns(TrainingModeWarning) as record:
        functional(net)
    (message,) = [str(w.message) for w in record]
    assert "blocks/1 drops the same units in every call" in message
    assert "bn normalizes by the batch" in message
    assert "idle" not in message
    for way_out in ("model.eval()", "keyed=True", "mutable=True"):
        assert way_out in message


@pytest.mark.slow
def test_who_has_what_it_takes_is_not_warned(net):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        functional(net, mutable=True)
        functional(net, keyed=True, mutable=True)
        net.eval()
        functional(net)
    net.train()
    with pytest.warns(TrainingModeWarning, match=r"training mode: bn normalizes"):
        functional(net, keyed=True)


@pytest.mark.slow
def test_dropout_is_a_function_of_the_key(net, x):
    f, params = functional(net, keyed=True, method="hidden")
    key, other = jax.random.split(jax.random.key(3))
    dropped = f(key, params, x) == 0
    # 512 units, each dropped with probability 1/2.
    assert abs(float(dropped.mean()) - 0.5) < 5 * 0.5 / np.sqrt(dropped.size)
    np.testing.assert_array_equal(f(key, params, x), jax.jit(f)(key, params, x))
    assert (dropped != (f(other, params, x) == 0)).any()
    masks = jax.vmap(f, (0, None, None))(jax.random.split(key, 400), params, x) == 0
    assert float(jnp.abs(masks.mean(0) - 0.5).max()) < 6 * 0.5 / np.sqrt(400)
    with pytest.raises(TypeError, match="Net: the first argument must be a random key"):
        f(params, x)


@pytest.mark.slow
def test_of_a_method_only_what_it_runs_is_said(net, x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f, params = functional(net, method=lambda module, x: module.blocks[0](x))
        f(params, x)
        g, _ = functional(net, method="hidden")
    with pytest.warns(TrainingModeWarning, match=r"training mode: blocks/1 drops the same units"):
        g(params, x)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # optax and Flax do
def test_batch_norm_trains_with_keyed_dropout(net, x):
    f, params, state = functional(net, keyed=True, mutable=True)
    assert not any("rng" in str(path) for path, _ in jax.tree_util.tree_leaves_with_path(state))
    y, after = f(jax.random.key(0), params, state, x)
    assert y.shape == (8, 3)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert (after["bn"]["mean"] != state["bn"]["mean"]).any()
    labels = jnp.arange(8) % 3
    trained = fit(
        jax.random.key(0), cross_entropy(f, keyed=True, mutable=True), params, (x, labels),
        state=state, optimizer=optax.adam(1e-2), epochs=2, batch_size=4, progress=False,
    )  # fmt: skip
    assert (trained.state["bn"]["mean"] != state["bn"]["mean"]).any()


@pytest.mark.promotes("dtype", "rank")
def test_a_state_of_training_with_keys_is_one_of_inference(net, x):
    keyed, params, state = functional(net, keyed=True, mutable=True)
    plain, _, with_streams = functional(net, mutable=True)
    key = jax.random.key(0)
    wanted, after = keyed(key, params, state, x)
    ours, after_with_streams = keyed(key, params, with_streams, x)
    np.testing.assert_array_equal(ours, wanted)
    assert jax.tree.structure(after_with_streams) == jax.tree.structure(with_streams)
    with pytest.raises(ValueError, match=r"is missing, from which the model draws: .*keyed=True"):
        plain(params, state, x)
    net.eval()
    infer, _, _ = functional(net, mutable=True)
    y, same = infer(params, after, x)
    assert jax.tree.structure(same) == jax.tree.structure(state)
    np.testing.assert_array_equal(y, infer(params, after_with_streams, x)[0])


def test_the_program_of_a_keyed_function_names_its_layers(net, x):
    f, params, state = functional(net, keyed=True, mutable=True)
    sites = jaxeff.sites(f, jax.random.key(0), params, state, x)
    assert {"blocks/0", "bn", "last"} <= set(sites)


def test_linen_says_so_when_it_is_called_in_training(x):
    module = LinenNet()
    variables = module.init(jax.random.key(0), x)
    f, params = functional(module, variables)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(params, x)
        g, _, state = functional(module, variables, mutable=True)
        g(params, state, x, train=True, rngs={"dropout": jax.random.key(1)})
    with pytest.warns(TrainingModeWarning, match="training mode: bn normalizes by the batch"):
        f(params, x, train=True, rngs={"dropout": jax.random.key(1)})


@pytest.mark.slow
def test_linen_takes_the_key_for_its_streams(x):
    module = LinenNet()
    variables = module.init(jax.random.key(0), x)
    f, params, state = functional(module, variables, keyed=True, mutable=True)
    one, _ = f(jax.random.key(1), params, state, x, train=True)
    again, _ = f(jax.random.key(1), params, state, x, train=True)
    other, _ = f(jax.random.key(2), params, state, x, train=True)
    np.testing.assert_array_equal(one, again)
    assert (one != other).any()
