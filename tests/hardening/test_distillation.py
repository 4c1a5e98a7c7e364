"""Distillation: its value and gradient by hand, and a student that becomes its teacher."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxeff.hardening import distilled, incremental_noise
from jaxeff.noise import Additive, noisy
from jaxeff.training import fit

KEY = jax.random.key(0)
X = jax.random.normal(jax.random.key(1), (16, 4))
LABELS = jnp.arange(16) % 3
TAUGHT = jax.random.normal(jax.random.key(2), (4, 3))
PARAMS = {"fc": {"kernel": 0.5 * jax.random.normal(jax.random.key(3), (4, 3))}}


def f(params, x):
    return x @ params["fc"]["kernel"]


def teacher(x):
    return x @ TAUGHT


@pytest.mark.slow
def test_gradient_is_the_closed_form():
    # Of the logits: (1 - w) (p - y) + w T (p_T - q_T), averaged over the batch (Hinton, section 2).
    t, w = 3.0, 0.7
    loss = distilled(f, teacher, temperature=t, weight=w)
    grad = jax.grad(lambda p: loss(KEY, p, None, (X, LABELS), 0)[0])(PARAMS)["fc"]["kernel"]
    logits = f(PARAMS, X)
    hard = jax.nn.softmax(logits) - jax.nn.one_hot(LABELS, 3)
    soft = jax.nn.softmax(logits / t) - jax.nn.softmax(teacher(X) / t)
    np.testing.assert_allclose(grad, X.T @ ((1 - w) * hard + w * t * soft) / 16, atol=1e-6)


@pytest.mark.slow
@pytest.mark.promotes("dtype")
def test_a_noisy_student_learns_from_a_clean_teacher():
    def loss_at(sigma):
        student = noisy(f, {"fc": Additive(sigma)})
        return distilled(student, teacher, temperature=2.0, weight=1.0, keyed=True)

    ramp = optax.linear_schedule(0.0, 1.0, 200)
    result = fit(
        KEY, incremental_noise(loss_at, ramp)(0.1), PARAMS, (X, LABELS),
        optimizer=optax.adam(0.03), epochs=300, batch_size=16,
    )  # fmt: skip
    clean = distilled(f, teacher, temperature=2.0, weight=1.0)
    start = clean(KEY, PARAMS, None, (X, LABELS), 0)[0]
    end = clean(KEY, result.params, None, (X, LABELS), 0)[0]
    assert end < 0.02 * start


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="weight must be between 0 and 1"):
        distilled(f, teacher, weight=1.5)
    with pytest.raises(ValueError, match="temperature must be positive"):
        distilled(f, teacher, temperature=0.0)
