"""`functional`: NNX and Linen models become the same kind of pure function."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import jaxeff
from jaxeff.core import functional
from jaxeff.core._from_jax import TrainingModeWarning
from jaxeff.nn import MLP
from tests.edited import DELETED, with_edit

pytestmark = pytest.mark.promotes("rank")  # Flax's batch norm does


class Block(nnx.Module):
    def __init__(self, rngs):
        self.lin = nnx.Linear(4, 4, rngs=rngs)
        self.bn = nnx.BatchNorm(4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.drop(self.bn(self.lin(x)))


class Net(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs) for _ in range(11)])
        self.scale = nnx.Param(jnp.full(4, 2.0))
        self.tied = self.blocks[0].lin

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.tied(x) * self.scale

    def first(self, x):
        return self.blocks[0].lin(x)


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(4, name="fc1")(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5, name="bn1")(x)
        return nn.Dropout(0.5, deterministic=not train)(x)

    def double(self, x):
        return 2 * x


@pytest.fixture
def x():
    return jax.random.normal(jax.random.key(1), (3, 4))


@pytest.fixture
def net():
    return Net(nnx.Rngs(0))


@pytest.fixture
def linen(x):
    module = LinenNet()
    return module, module.init(jax.random.key(0), x)


def names(jaxpr):
    return [e.params["name"] for e in jaxpr.jaxpr.eqns if e.primitive.name == "name"]


@pytest.mark.slow
def test_nnx_parameters_are_a_plain_dict_of_trainable_arrays(net):
    net.eval()
    _, params = functional(net)
    assert type(params) is dict
    assert set(params) == {"blocks", "scale"}  # tied weights appear once
    assert set(params["blocks"]) == {str(i) for i in range(11)}
    assert set(params["blocks"]["10"]) == {"lin", "bn"}
    assert params["blocks"]["10"]["lin"]["kernel"].shape == (4, 4)
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))


@pytest.mark.slow
def test_nnx_equals_the_model(net, x):
    net.eval()
    f, params = functional(net)
    np.testing.assert_array_equal(f(params, x), net(x))


def test_linen_equals_the_model(linen, x):
    module, variables = linen
    f, params = functional(module, variables)
    assert set(params) == {"fc1", "bn1"}
    np.testing.assert_array_equal(f(params, x), module.apply(variables, x))
    g, bound_params = functional(module.bind(variables))
    np.testing.assert_array_equal(g(bound_params, x), f(params, x))


def test_methods(net, linen, x):
    f, params = functional(net, method="first")
    np.testing.assert_array_equal(f(params, x), net.first(x))
    f, params = functional(net, method=Net.first)
    np.testing.assert_array_equal(f(params, x), net.first(x))
    f, params = functional(*linen, method="double")
    np.testing.assert_array_equal(f(params, x), 2 * x)


def test_nnx_state_is_passed_and_returned(net, x):
    f, params, state = functional(net, mutable=True)
    y, new = f(params, state, x)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    reference = Net(nnx.Rngs(0))
    np.testing.assert_array_equal(y, reference(x))
    bn = reference.blocks[3].bn
    np.testing.assert_array_equal(new["blocks"]["3"]["bn"]["mean"], bn.mean.get_value())
    # A second call continues from the new state: other masks, further statistics.
    again, _ = f(params, new, x)
    np.testing.assert_array_equal(again, reference(x))
    assert not np.array_equal(again, y)


@pytest.mark.slow
def test_linen_state_is_passed_and_returned(linen, x):
    module, variables = linen
    f, params, state = functional(module, variables, mutable=True)
    rngs = {"dropout": jax.random.key(3)}
    y, new = f(params, state, x, train=True, rngs=rngs)
    want, updated = module.apply(variables, x, train=True, rngs=rngs, mutable=["batch_stats"])
    np.testing.assert_array_equal(y, want)
    jax.tree.map(np.testing.assert_array_equal, new, dict(updated))


def test_linen_variables_may_have_slashes_in_their_names():
    x = jnp.linspace(-1.0, 1.0, 6).reshape(2, 3)
    module = nn.SpectralNorm(nn.Dense(4))  # a variable of it is called "Dense_0/kernel/u"
    variables = module.init(jax.random.key(0), x, update_stats=False)
    f, params = functional(module, variables)
    exact = module.apply(variables, x, update_stats=False)
    np.testing.assert_array_equal(f(params, x, update_stats=False), exact)
    weights = nn.WeightNorm(nn.Dense(4)).init(jax.random.key(0), x)  # a parameter of it, too
    exact = nn.WeightNorm(nn.Dense(4)).apply(weights, x)
    output = functional(nn.WeightNorm(nn.Dense(4)), weights)
    np.testing.assert_array_equal(output[0](output[1], x), exact)
    # In training both step the same power iteration.
    g, params, state = functional(module, variables, mutable=True)
    exact, after = module.apply(variables, x, update_stats=True, mutable=["batch_stats"])
    output, state = g(params, state, x, update_stats=True)
    np.testing.assert_array_equal(output, exact)
    for leaf, other in zip(*map(jax.tree.leaves, (state, after)), strict=True):
        np.testing.assert_array_equal(leaf, other)


@pytest.mark.slow
def test_immutable_form_discards_updates_and_never_touches_the_model(net, linen, x):
    before = jax.tree.map(lambda leaf: leaf, nnx.to_pure_dict(nnx.state(net, nnx.BatchStat)))
    with pytest.warns(TrainingModeWarning):
        f, params = functional(net)
    np.testing.assert_array_equal(f(params, x), f(params, x))
    jax.jit(f)(params, x)
    after = nnx.to_pure_dict(nnx.state(net, nnx.BatchStat))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert int(net.blocks[0].drop.rngs.count[...]) == 0

    g, params = functional(*linen)
    rngs = {"dropout": jax.random.key(3)}
    with pytest.warns(TrainingModeWarning):
        y, again = (g(params, x, train=True, rngs=rngs) for _ in range(2))
    np.testing.assert_array_equal(y, again)


@pytest.mark.slow
def test_snapshot_ignores_later_changes_of_the_model(net, x):
    net.eval()
    f, params = functional(net)
    y = f(params, x)
    net.scale[...] = jnp.zeros(4)
    net.train()
    np.testing.assert_array_equal(f(params, x), y)


def test_state_leaves_are_named_in_the_jaxpr(net, linen, x):
    net.eval()
    f, params = functional(net)
    site_names = names(jax.make_jaxpr(f)(params, x))
    assert "jaxeff.state:blocks/10/bn/mean" in site_names
    assert not any(name.startswith("jaxeff.new_state") for name in site_names)
    net.train()
    f, params, state = functional(net, mutable=True)
    site_names = names(jax.make_jaxpr(f)(params, state, x))
    assert "jaxeff.state:blocks/0/bn/var" in site_names
    assert "jaxeff.new_state:blocks/0/bn/var" in site_names
    f, params = functional(*linen)
    assert "jaxeff.state:batch_stats/bn1/mean" in names(jax.make_jaxpr(f)(params, x))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nnx", "linen"])
def test_composes_with_jit_vmap_grad_and_scan(kind, net, linen, x):
    net.eval()
    f, params = functional(net) if kind == "nnx" else functional(*linen)
    y = f(params, x)
    np.testing.assert_allclose(jax.jit(f)(params, x), y, rtol=1e-5, atol=1e-6)
    rows = jax.vmap(f, in_axes=(None, 0))(params, x[:, None])[:, 0]
    np.testing.assert_allclose(rows, y, rtol=1e-5, atol=1e-6)
    _, scanned = jax.lax.scan(lambda c, row: (c, f(params, row)), 0, x[:, None])
    np.testing.assert_allclose(scanned[:, 0], y, rtol=1e-5, atol=1e-6)

    # The gradient along a direction is the derivative of the loss along it.
    def loss(p):
        return jnp.sum(f(p, x) ** 2)

    direction = jax.tree.map(jnp.ones_like, params)
    slope = jax.jvp(loss, (params,), (direction,))[1]
    inner = sum(jnp.vdot(g, 1.0 + 0 * g) for g in jax.tree.leaves(jax.grad(loss)(params)))
    np.testing.assert_allclose(slope, inner, rtol=1e-4)


def test_one_trace_per_shape(net, x):
    net.eval()
    f, params = functional(net)
    traces = []

    @jax.jit
    def g(params, x):
        traces.append(1)
        return f(params, x)

    for _ in range(3):
        g(params, x)
    assert len(traces) == 1


@pytest.mark.slow
def test_training_in_a_scan_carries_the_state(net, x):
    f, params, state = functional(net, mutable=True)

    def step(carry, _):
        y, new = f(params, carry, x)
        return new, y

    last, ys = jax.lax.scan(step, state, length=3)
    y, new = f(params, state, x)
    # Eleven norms over three examples pass rounding on: it is held against the largest entry.
    np.testing.assert_allclose(ys[0], y, rtol=1e-5, atol=1e-5 * float(jnp.abs(y).max()))
    assert int(last["blocks"]["0"]["drop"]["rngs"]["count"]) == 3
    assert int(new["blocks"]["0"]["drop"]["rngs"]["count"]) == 1


@pytest.mark.promotes("dtype")  # half precision meets single
def test_numpy_and_half_precision_parameters_fit(net, x):
    net.eval()
    f, params = functional(net)
    y = f(params, x)
    np.testing.assert_array_equal(f(jax.tree.map(np.asarray, params), x), y)
    half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)
    assert f(half, x).shape == y.shape


def change(params, path, leaf):
    return with_edit(params, path.split("/"), DELETED if leaf is None else leaf)


@pytest.mark.parametrize(
    ("path", "leaf", "message"),
    [
        ("scale", None, r"Net: parameter 'scale' is missing, expected float32\[4\]"),
        ("extra", jnp.ones(2), r"Net: parameter 'extra' is not one of the model's"),
        (
            "blocks/1/lin/kernel",
            jnp.ones((4, 5)),
            r"'blocks/1/lin/kernel' must be float32\[4,4\], but float32\[4,5\] was given",
        ),
        ("scale", jnp.ones(4, jnp.int32), r"must be float32\[4\], but int32\[4\] was given"),
        ("scale", "wrong", r"'scale' must be an array float32\[4\], not a str"),
    ],
)
def test_parameters_that_do_not_fit_name_the_leaf(net, x, path, leaf, message):
    net.eval()
    f, params = functional(net)
    with pytest.raises(ValueError, match=message):
        f(change(params, path, leaf), x)
    with pytest.raises(ValueError, match="must be a nested dict of arrays, not list"):
        f([1.0], x)


def test_state_that_does_not_fit_names_the_leaf(linen, x):
    f, params, state = functional(*linen, mutable=True)
    bad = change(state, "batch_stats/bn1/mean", jnp.ones(7))
    with pytest.raises(ValueError, match=r"state 'batch_stats/bn1/mean' must be float32\[4\]"):
        f(params, bad, x)


def test_wrong_models_are_clear_errors(net, linen):
    module, variables = linen
    with pytest.raises(TypeError, match="holds its own variables"):
        functional(net, variables)
    with pytest.raises(ValueError, match="Linen module without variables"):
        functional(module)
    with pytest.raises(ValueError, match="no 'params'"):
        functional(module, variables["params"])
    with pytest.raises(TypeError, match="model must be a module of Flax"):
        functional(jnp.sin)


def test_abstract_models_keep_their_shapes(x):
    net = nnx.eval_shape(lambda: Net(nnx.Rngs(0)))
    f, params, state = functional(net, mutable=True)
    y, _ = jax.eval_shape(f, params, state, x)
    assert y.shape == (3, 4)
    with pytest.raises(ValueError, match="no value to close over"):
        functional(net)  # a stream of random numbers


def test_abstract_statistics_are_read_by_shapes_alone():
    model = nnx.eval_shape(lambda: MLP((4, 8, 2), batch_norm=True, rngs=nnx.Rngs(0)))
    model.eval()
    f, params = functional(model)
    x = jnp.ones((3, 4))
    assert jax.eval_shape(f, params, x).shape == (3, 2)
    assert "normalization" in {layer.kind for layer in jaxeff.trace(f, params, x).sites}
    # No result can be taken for one of the model with its statistics.
    ones = jax.tree.map(lambda w: jnp.ones(w.shape, w.dtype), params)
    assert jnp.isnan(f(ones, x)).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x[0], r"float32\[6, ?6, ?3\].*axis of examples missing"),
        (lambda x: x.transpose(0, 3, 1, 2), r"float32\[2, ?3, ?6, ?6\].*channels come first"),
        (lambda x: jnp.arange(4), r"int32\[4\].*look like labels"),
    ],
    ids=["no batch", "channels first", "labels"],
)
@pytest.mark.parametrize("transformed", [False, True])
def test_an_error_of_a_layer_names_the_inputs(change, said, transformed):
    class Net(nnx.Module):
        def __init__(self, rngs):
            self.conv, self.last = nnx.Conv(3, 4, (3, 3), rngs=rngs), nnx.Linear(4, 2, rngs=rngs)

        def __call__(self, x):
            return self.last(self.conv(x).mean((1, 2)))

    f, params = functional(Net(nnx.Rngs(0)))
    x, key = change(jnp.ones((2, 6, 6, 3))), jax.random.key(0)
    noisy = partial(jaxeff.noisy(f, {"conv": jaxeff.Additive(0.1)}), key)
    call = noisy if transformed else f
    with pytest.raises((TypeError, ValueError)) as error:
        call(params, x)
    (note,) = [n for n in error.value.__notes__ if "Net was called with" in n]
    assert re.search(said, note)
    with pytest.raises(ValueError, match=r"come before the inputs, f\(params, x\)"):
        f(x, params)
