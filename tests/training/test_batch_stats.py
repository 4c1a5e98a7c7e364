"""Running statistics where training would take them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxeff
from jaxeff.nn import small_classifier
from jaxeff.training import (
    converge_batch_stats,
    cross_entropy,
    fit,
    init,
    make_epoch,
    run_epochs,
)


class Net(nn.Module):
    """Two normalized layers."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.BatchNorm(False, momentum=0.9)(nn.Dense(5)(x)))
        return nn.BatchNorm(False, momentum=0.6)(nn.Dense(3)(x))


@pytest.mark.slow
def test_many_steps_end_there():
    x = jax.random.normal(jax.random.key(0), (32, 4)) * 3 + 1
    variables = Net().init(jax.random.key(1), x)
    params, state = variables["params"], {"stats": variables["batch_stats"], "seen": jnp.array(7)}

    def train(params, state, x):
        variables = {"params": params, "batch_stats": state["stats"]}
        logits, found = Net().apply(variables, x, mutable=["batch_stats"])
        return logits, {"stats": found["batch_stats"], "seen": state["seen"] + 1}

    found = converge_batch_stats(train, params, state, x)
    assert found["seen"] == 7  # a counter has nowhere to settle
    for _ in range(300):
        _, state = train(params, state, x)
    for ours, wanted in zip(*map(jax.tree.leaves, (found["stats"], state["stats"])), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-5)


class Dropping(nnx.Module):
    """Batch norm before and dropout after a convolution; it may have a frozen norm besides."""

    def __init__(self, rngs, *, frozen=False):
        self.conv = nnx.Conv(1, 8, (3, 3), strides=3, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.still = nnx.BatchNorm(8, rngs=rngs) if frozen else None
        self.drop, self.last = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(800, 10, rngs=rngs)

    def __call__(self, x):
        hidden = self.norm(self.conv(x))
        if self.still is not None:
            hidden = self.still(hidden, use_running_average=True)
        return self.last(self.drop(jax.nn.relu(hidden).reshape(len(x), -1)))


KEY = jax.random.key(0)
DATA = small_classifier()[2]


def trained(model, epochs=2):
    train, params, state = jaxeff.functional(model, keyed=True, mutable=True)
    loss = cross_entropy(train, keyed=True, mutable=True)
    result = fit(
        KEY, loss, params, DATA, state=state, optimizer=optax.adam(1e-2), epochs=epochs,
        batch_size=32, progress=False,
    )  # fmt: skip
    return train, state, result


@pytest.mark.promotes("dtype", "rank")
@pytest.mark.parametrize("frozen", [False, True])
def test_a_short_training_has_the_statistics_of_its_own_parameters(frozen):
    x, y = DATA
    train, start, result = trained(Dropping(nnx.Rngs(0), frozen=frozen))
    # All data as one batch have the same means, and variances larger by those of batches' means.
    one_batch = converge_batch_stats(train, result.params, result.state, x, key=KEY)["norm"]
    ours = result.state["norm"]
    assert (jnp.abs(ours["mean"] - one_batch["mean"]) < 0.05 * jnp.sqrt(one_batch["var"])).all()
    np.testing.assert_allclose(ours["var"], one_batch["var"], rtol=0.1)
    if frozen:
        np.testing.assert_array_equal(result.state["still"]["mean"], start["still"]["mean"])
    model = Dropping(nnx.Rngs(0), frozen=frozen)
    model.eval()
    infer, _, _ = jaxeff.functional(model, mutable=True)
    # After 16 updates running ones are those of the start by more than four fifths.
    logits, _ = infer(result.params, result.state, x)
    assert (logits.argmax(-1) == y).mean() > result.history[-1]["accuracy"]


@pytest.mark.promotes("dtype", "rank")
def test_a_state_that_the_loss_depends_on_stays():
    def scaled(params, state, x):
        """Divides by a running scale, as a quantizer of a running range does."""
        scale = 0.9 * state["scale"] + 0.1 * jnp.abs(x).max()
        return (x / scale).reshape(len(x), -1) @ params["w"], {"scale": scale}

    params, state = {"w": jnp.zeros((784, 10))}, {"scale": jnp.array(0.5)}
    loss, optimizer = cross_entropy(scaled, mutable=True), optax.sgd(0.1)
    run = {"epochs": 1, "progress": False}
    result = fit(KEY, loss, params, DATA, state=state, optimizer=optimizer, batch_size=32, **run)
    epoch, start = make_epoch(loss, optimizer, 32), init(params, optimizer, state)
    last, _ = run_epochs(KEY, epoch, start, DATA, **run)
    assert result.state["scale"] == last.state["scale"] != 0.5
