"""Running statistics where training would take them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.training import converge_batch_stats


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
