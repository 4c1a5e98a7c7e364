"""`penalty` and `memory`: sums over a model's sites, that train clipping levels and widths."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxeff.compression import LSQ, PACT, LayerQuantization, init, learned, memory, penalty
from jaxeff.contrib import LearnedWidth
from jaxeff.nn import small_classifier


@pytest.fixture(scope="module")
def model():
    return small_classifier()


@pytest.mark.slow
def test_the_penalty_is_the_sum_over_sites(model):
    f, params, (x, _) = model
    spec = init(
        f, params, x, {"*:linear": LayerQuantization(PACT(4, decay=0.1), PACT(3, decay=0.2))}
    )
    by_hand = sum(
        0.1 * s.weights.alpha**2 + 0.2 * s.activations.alpha**2 for s in spec.values() if s
    )
    ours = jax.jit(penalty, static_argnums=0)(f, params, x, spec)
    np.testing.assert_allclose(ours, by_hand, rtol=1e-6)
    grads = jax.grad(lambda spec: penalty(f, params, x, spec))(spec)
    for site, setting in grads.items():
        np.testing.assert_allclose(setting.weights.alpha, 0.2 * spec[site].weights.alpha, rtol=1e-6)
    assert penalty(f, params, x, {"*:linear": LSQ(4)}) == 0


def test_memory_counts_each_weight_once():
    def twice(params, x):
        return jnp.tanh(x @ params["w"]) @ params["w"]

    params = {"w": jnp.ones((4, 4)) / 3}
    x = jnp.ones((2, 4))
    spec = {"*:linear": LayerQuantization(LearnedWidth(5))}
    assert memory(twice, params, x, spec) == 16 * 5 + 64
    spec = {"*:linear": LayerQuantization(activations=LearnedWidth(5))}
    assert memory(twice, params, x, spec, arrays="activations") == 2 * (8 * 5 + 64)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params)
    assert memory(twice, shapes, x, {"*:linear": LayerQuantization(LSQ(4))}) == 16 * 4 + 32


@pytest.mark.slow
@pytest.mark.promotes("dtype")  # Optax
def test_widths_shrink_to_a_budget(model):
    f, params, (x, y) = model
    spec = init(f, params, x, {"*:linear": LayerQuantization(LearnedWidth(8))})
    start = memory(f, params, x, spec)
    budget = start / 2
    optimizer = optax.adam(0.03)

    def loss(numbers):
        params, spec = numbers
        logits = learned(f)((params, spec), x)
        too_much = jax.nn.relu(memory(f, params, x, spec) / budget - 1)
        fit = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return fit + 10 * too_much**2

    @jax.jit
    def step(numbers, state):
        updates, state = optimizer.update(jax.grad(loss)(numbers), state)
        return optax.apply_updates(numbers, updates), state

    numbers = params, spec
    state = optimizer.init(numbers)
    for _ in range(150):
        numbers, state = step(numbers, state)
    assert memory(f, params, x, numbers[1]) < 0.6 * start
    assert np.isfinite(loss(numbers))


def test_a_loop_says_so():
    def scanned(params, x):
        return jax.lax.scan(lambda c, _: (c @ params["w"], None), x, length=2)[0]

    params, x = {"w": jnp.eye(3)}, jnp.ones((2, 3))
    with pytest.raises(ValueError, match="lies inside a loop or branch, where the penalty of PACT"):
        penalty(scanned, params, x, {"*:linear": LayerQuantization(PACT(4, 1.0))})
    assert (
        memory(scanned, params, x, {"*:linear": LayerQuantization(LearnedWidth(5))}) == 9 * 5 + 64
    )
