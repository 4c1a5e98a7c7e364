"""Batch-, Packed- and MIMO-ensembles against the same networks written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxeff
from jaxeff.ensembles import Members, batch_ensemble, member_loss, mimo, mimo_loss, packed
from jaxeff.nn import MLP, small_classifier
from jaxeff.training import fit

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (12, 6))
Y = jnp.arange(12, dtype=jnp.int32) % 3
F, PARAMS = jaxeff.functional(MLP((6, 8, 3), rngs=nnx.Rngs(0)))


@pytest.mark.slow
def test_factors_multiply_kernels():
    g, members = batch_ensemble(KEY, F, PARAMS, X, {"*": Members(4)})
    factors = members["factors"]["fc1/kernel"]
    assert factors["inputs"].shape == (4, 6, 1)
    assert factors["outputs"].shape == (4, 1, 8)
    assert set(np.unique(factors["inputs"])) == {-1.0, 1.0}
    out = jax.jit(g)(members, X)
    assert out.shape == (4, 12, 3)
    for i in range(4):
        own = jax.tree.map(lambda leaf: leaf, PARAMS)
        for name in ("fc1", "fc2"):
            r = members["factors"][f"{name}/kernel"]["inputs"][i]
            s = members["factors"][f"{name}/kernel"]["outputs"][i]
            own[name]["kernel"] = PARAMS[name]["kernel"] * (r @ s)
        np.testing.assert_allclose(out[i], F(own, X), atol=1e-5)
    # Memory: a network and, for each member, a number per input and output of a kernel.
    size = sum(leaf.size for leaf in jax.tree.leaves(members))
    assert size == sum(leaf.size for leaf in jax.tree.leaves(PARAMS)) + 4 * (6 + 8 + 8 + 3)
    again = batch_ensemble(KEY, F, PARAMS, X, {"*": Members(4)})[1]
    np.testing.assert_array_equal(again["factors"]["fc1/kernel"]["inputs"], factors["inputs"])


@pytest.mark.slow
def test_factors_of_convolutions_have_channels():
    f, params, (x, _) = small_classifier(4)
    g, members = batch_ensemble(KEY, f, params, x, {"conv1": Members(3)})
    kernel = params["conv1"]["kernel"]
    assert members["factors"]["conv1/kernel"]["inputs"].shape == (3, 1, 1, kernel.shape[2], 1)
    assert list(members["factors"]) == ["conv1/kernel"]
    out = g(members, x)
    r, s = (members["factors"]["conv1/kernel"][part][1] for part in ("inputs", "outputs"))
    own = {**params, "conv1": {**params["conv1"], "kernel": kernel * r * s}}
    np.testing.assert_allclose(out[1], f(own, x), atol=1e-5)
    with pytest.raises(ValueError, match="no layer with a kernel"):
        batch_ensemble(KEY, F, PARAMS, X, {"relu": Members(3)})
    with pytest.raises(ValueError, match="as many everywhere"):
        batch_ensemble(KEY, F, PARAMS, X, {"fc1": Members(3), "fc2": Members(2)})


@pytest.mark.slow
def test_packed_members_are_narrower_networks_and_cost_as_said():
    wide, params = jaxeff.functional(MLP((6, 64, 64, 3), rngs=nnx.Rngs(0)))
    g, members = packed(KEY, wide, params, X, 4, width=2.0)
    assert members["fc2"]["kernel"].shape == (4, 32, 32)
    out = jax.jit(g)(members, X)
    assert out.shape == (4, 12, 3)
    # The same as one network whose kernels have a block for each member.
    hidden = jax.nn.relu(jnp.einsum("ni,mij->mnj", X, members["fc1"]["kernel"])
                         + members["fc1"]["bias"][:, None])  # fmt: skip
    blocks = jax.scipy.linalg.block_diag(*members["fc2"]["kernel"])
    together = jnp.concatenate(list(hidden), axis=1) @ blocks
    hidden = jax.nn.relu(together + members["fc2"]["bias"].reshape(1, -1))
    expected = jnp.einsum("nmi,mij->mnj", hidden.reshape(12, 4, 32), members["fc3"]["kernel"])
    np.testing.assert_allclose(out, expected + members["fc3"]["bias"][:, None], atol=1e-4)
    macs, alone = jaxeff.cost(g, members, X[:1]).macs, jaxeff.cost(wide, params, X[:1]).macs
    assert macs == 4 * (6 * 32 + 32 * 32 + 32 * 3)
    assert alone == 6 * 64 + 64 * 64 + 64 * 3
    deep, as_wide = packed(KEY, wide, params, X, 2, width=2.0)
    assert as_wide["fc2"]["kernel"].shape == (2, 64, 64)
    assert deep(as_wide, X).shape == (2, 12, 3)


@pytest.mark.slow
def test_one_run_holds_several_inputs_and_outputs():
    f, params = jaxeff.functional(MLP((12, 16, 6), rngs=nnx.Rngs(0)))
    g = mimo(f, 2)
    out = g(params, X)
    assert out.shape == (2, 12, 3)
    twice = f(params, jnp.concatenate([X, X], axis=1))
    np.testing.assert_allclose(out[0], twice[:, :3], atol=1e-6)
    np.testing.assert_allclose(out[1], twice[:, 3:], atol=1e-6)
    apart = g.joint(params, jnp.stack([X, X[::-1]]))
    mixed = f(params, jnp.concatenate([X, X[::-1]], axis=1))
    np.testing.assert_allclose(apart[1], mixed[:, 3:], atol=1e-6)
    np.testing.assert_allclose(jax.vmap(lambda x: g(params, x[None])[:, 0])(X), out.swapaxes(0, 1),
                               atol=1e-5)  # fmt: skip
    # Where all examples are seen alike, the loss is that of each output with the same labels.
    loss = mimo_loss(g, repetition=1.0)
    value, (metrics, _) = loss(KEY, params, None, (X, Y), 0)
    each = optax.softmax_cross_entropy_with_integer_labels(out, Y[None].repeat(2, 0))
    np.testing.assert_allclose(value, each.mean(1).sum(), rtol=1e-5)
    assert 0 <= metrics["accuracy"] <= 1
    other = mimo_loss(g)(KEY, params, None, (X, Y), 0)[0]
    assert abs(float(other - value)) > 1e-6
    with pytest.raises(ValueError, match="6 outputs, which 4 members don't share"):
        mimo(jaxeff.functional(MLP((24, 8, 6), rngs=nnx.Rngs(0)))[0], 4)(
            jaxeff.functional(MLP((24, 8, 6), rngs=nnx.Rngs(0)))[1], X
        )


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # optax
@pytest.mark.parametrize("kind", ["batch", "packed", "mimo"])
def test_they_learn(kind):
    x = jax.random.normal(KEY, (300, 6))
    labels = (x[:, 0] > 0).astype(jnp.int32) + (x[:, 1] > 0.5).astype(jnp.int32)
    f, params = jaxeff.functional(MLP((6, 32, 3), rngs=nnx.Rngs(0)))
    if kind == "mimo":
        f, params = jaxeff.functional(MLP((12, 64, 6), rngs=nnx.Rngs(0)))
        g = mimo(f, 2)
        loss = mimo_loss(g)
    else:
        g, params = (
            batch_ensemble(KEY, f, params, x, {"*": Members(3)})
            if kind == "batch" else packed(KEY, f, params, x, 3)
        )  # fmt: skip
        loss = member_loss(g)
    run = {"optimizer": optax.adam(1e-2), "epochs": 40, "batch_size": 50, "progress": False}
    trained = fit(KEY, loss, params, (x, labels), **run).params
    logits = g(trained, x)
    assert (jax.nn.softmax(logits).mean(0).argmax(-1) == labels).mean() > 0.9
    assert float(logits.std(0).mean()) > 1e-2  # members differ


def test_a_computed_kernel_has_no_factors():
    with pytest.raises(ValueError, match="kernel of fc1 is no parameter as it is"):
        batch_ensemble(
            KEY, lambda p, x: F(jax.tree.map(jnp.tanh, p), x), PARAMS, X, {"fc1": Members(3)}
        )
