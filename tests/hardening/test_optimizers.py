"""Weight clamping and sharpness-aware minimization, against their definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxeff.hardening import clamped, sharpness_aware
from jaxeff.training import fit, stateless

A = jnp.array([[3.0, 0.5], [0.5, 1.0]])
B = jnp.array([1.0, -2.0])
DATA = jnp.zeros((8, 1))


def quadratic(key, params, batch):
    w = params["w"]
    return 0.5 * w @ A @ w - B @ w


def descend(optimizer, epochs, start=(0.4, -0.3)):
    params = {"w": jnp.array(start)}
    loss = stateless(quadratic)
    result = fit(
        jax.random.key(0), loss, params, DATA, optimizer=optimizer, epochs=epochs, batch_size=4
    )
    return np.asarray(result.params["w"])


@pytest.mark.slow
@pytest.mark.parametrize("adaptive", [False, True])
def test_sam_is_its_definition_inside_a_scanned_epoch(adaptive):
    rate, rho, eta = 0.1, 0.7, 0.01
    ours = descend(sharpness_aware(optax.sgd(rate), rho, adaptive=adaptive, eta=eta), epochs=2)

    w = np.array([0.4, -0.3])
    for _ in range(4):  # two epochs of two batches
        g = A @ w - B
        scale = np.abs(w) + eta if adaptive else np.ones(2)
        worst = w + rho * scale**2 * g / np.linalg.norm(scale * g)
        w = w - rate * (A @ worst - B)
    np.testing.assert_allclose(ours, w, rtol=1e-5)


@pytest.mark.promotes("dtype")
def test_sam_without_radius_or_gradient_is_its_optimizer():
    np.testing.assert_allclose(
        descend(sharpness_aware(optax.adam(0.1), 0.0), 2), descend(optax.adam(0.1), 2), rtol=1e-6
    )
    optimizer = sharpness_aware(optax.sgd(0.1), 0.5)
    params = {"w": jnp.ones(2)}
    flat = {"w": jnp.zeros(2)}
    updates, _ = optimizer.update(flat, optimizer.init(params), params, grad_fn=lambda p, _: flat)
    np.testing.assert_array_equal(updates["w"], 0.0)


def test_clamped_weights_stop_at_their_bounds():
    free = descend(optax.sgd(0.1), 50)
    assert free[1] < -2
    bounded = optax.chain(sharpness_aware(optax.sgd(0.1), 0.01), clamped(-0.5, 1.0))
    end = descend(bounded, 50)
    np.testing.assert_allclose(end[1], -0.5, rtol=1e-6)
    # The other weight goes to the optimum on that boundary (SAM stays its radius away).
    np.testing.assert_allclose(end[0], (1 + 0.5 * 0.5) / 3, atol=0.02)


def test_clamping_brings_weights_back_and_leaves_others_alone():
    params = {"kernel": jnp.array([-3.0, 0.2]), "bias": jnp.array([5.0])}
    chosen = optax.masked(clamped(-1.0, 1.0), {"kernel": True, "bias": False})
    updates = jax.tree.map(lambda p: jnp.full_like(p, 0.1), params)
    updates, _ = chosen.update(updates, chosen.init(params), params)
    after = optax.apply_updates(params, updates)
    np.testing.assert_allclose(after["kernel"], [-1.0, 0.3], rtol=1e-6)
    np.testing.assert_allclose(after["bias"], [5.1], rtol=1e-6)
    with pytest.raises(ValueError, match="high must be at least 1"):
        clamped(1.0, -1.0)
