"""`BayesianBits`: the decomposition, its gates and their penalty against the paper's formulas."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import LayerQuantization, Tensor, init, penalty, quantized
from jaxeff.contrib import BayesianBits
from jaxeff.nn import small_classifier

KEY = jax.random.key(4)
WEIGHT = Tensor("fc", "weights_1", "weight", 2, KEY, lambda: (1,))
DATA = Tensor("fc", "input_0", "activation", 2, KEY)
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
G = np.random.default_rng(1).normal(size=(6, 4)).astype(np.float32)
SHIFT = 2 / 3 * np.log(0.1 / 1.1)
OPEN, SHUT = 40.0, -40.0


def gates(bits):
    return jnp.array([OPEN if b <= bits else SHUT for b in (4, 8, 16, 32)])


def decomposed(x, beta, low, z):
    """Section 2.1 in float64: the sum, and its derivative with respect to beta."""
    clipped = np.clip(x.astype(np.float64), low * (1 - 1e-7), beta * (1 - 1e-7))
    by_beta = np.where(x >= beta, 1.0, np.where((x <= low) & (low < 0), -1.0, 0.0))
    span, grows = beta - low, (2.0 if low < 0 else 1.0)
    step, slope = span / 3, grows / 3
    total, by_total, parts = np.zeros_like(clipped), np.zeros_like(clipped), []
    for bits in (2, 4, 8, 16, 32):
        if bits > 2:
            step, slope = step / (2 ** (bits // 2) + 1), slope / (2 ** (bits // 2) + 1)
        v = (clipped - total) / step
        part = np.round(v) * step
        # Rounding passes gradients: d(round(v) s) = dv s + round(v) ds, dv s = d(x - total) - v ds.
        by_part = (by_beta - by_total) + (np.round(v) - v) * slope
        parts.append((part, by_part))
        total, by_total = total + part, by_total + by_part
    y, by_y = parts[-1]
    for (part, by_part), gate in zip(parts[-2::-1], z[::-1], strict=True):
        y, by_y = part + gate * y, by_part + gate * by_y
    return y, by_y


def drawn_gates(phi):
    of_bits, of_channels = jax.random.split(KEY)

    def hard_concrete(key, phi):
        u = np.asarray(jax.random.uniform(key, np.shape(phi), minval=np.finfo(np.float32).tiny))
        s = 1 / (1 + np.exp(-(np.log(u) - np.log1p(-u) + phi) / (2 / 3)))
        return np.clip(1.2 * s - 0.1, 0, 1)

    return hard_concrete(of_bits, phi[0]), hard_concrete(of_channels, phi[1])


@pytest.mark.slow
def test_every_method_keeps_the_rules(check_method):
    check_method(BayesianBits(pruned="channel"), exact=False)
    check_method(BayesianBits(gates=gates(4), hard=True))


@pytest.mark.slow
@pytest.mark.parametrize(("tensor", "signed"), [(WEIGHT, True), (DATA, False)])
def test_the_decomposition_and_its_gradients(tensor, signed):
    beta, low = 1.2, -1.2 if signed else 0.0
    phi = np.array([0.3, 0.5, -0.2, 0.1], np.float32), np.array([[0.1, -0.4, 3.0, 0.2]], np.float32)
    z, kept = drawn_gates(phi)
    assert ((z > 0) & (z < 1)).any()
    y, by_beta = decomposed(X, beta, low, z)
    q = BayesianBits(
        pruned="channel", maximum=jnp.array(beta), gates=jnp.asarray(phi[0]),
        kept=jnp.asarray(phi[1]), signed=signed,
    )  # fmt: skip
    np.testing.assert_allclose(q.quantize(jnp.asarray(X), tensor), kept * y, atol=2e-6)

    def product(q, x):
        return jnp.vdot(G, q.quantize(x, tensor))

    by_q, by_x = jax.grad(product, (0, 1))(q, jnp.asarray(X))
    np.testing.assert_allclose(by_q.maximum, (G * kept * by_beta).sum(), rtol=1e-4)
    # Residuals have no derivative with respect to x: that of x_2 is one inside the range.
    inside = np.clip(X, low, beta) == X
    np.testing.assert_allclose(by_x, G * kept * inside, atol=1e-6)
    # A gate's derivative is what it lets through times that of the clipped sigmoid.
    h = 1e-3

    def at(i, change):
        moved = phi[0].astype(np.float64).copy()
        moved[i] += change
        return (G * kept * decomposed(X, beta, low, drawn_gates((moved, phi[1]))[0])[0]).sum()

    slopes = [(at(i, h) - at(i, -h)) / (2 * h) for i in range(4)]
    np.testing.assert_allclose(by_q.gates, slopes, rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_open_gates_are_a_grid_of_their_width(bits):
    x = jnp.asarray(np.random.default_rng(2).uniform(-1, 1, 40001), jnp.float32)
    x = x.at[:2].set(jnp.array([-1.0, 1.0]))[:, None]
    q = BayesianBits(gates=gates(bits), hard=True).start(x, WEIGHT)
    y = q.quantize(x, dataclasses.replace(WEIGHT, key=None))
    assert q.width == bits
    assert jax.jit(lambda q: q.width)(q) == bits
    step = 2 / (2.0**bits - 1)
    np.testing.assert_allclose(y / step, np.round(y / step), atol=1e-3 * 2**bits / 100)
    assert len(np.unique(y)) == 2**bits - 1 if bits < 16 else len(np.unique(y)) < 40001
    np.testing.assert_array_equal(q.quantize(y, WEIGHT), y)
    if bits < 16:
        np.testing.assert_allclose(jnp.mean((y - x) ** 2), step**2 / 12, rtol=0.05)
    # The decomposition with the same gates says the same, but for numbers beside a middle.
    summed = dataclasses.replace(q, hard=False).quantize(x, WEIGHT)
    beside = np.abs(np.abs(x / step - np.round(x / step)) - 0.5) < 1e-6 / step
    np.testing.assert_allclose(np.where(beside, y, summed), y, atol=1e-6)
    assert beside.mean() < 0.1


def test_all_gates_open_return_the_array():
    q = BayesianBits(gates=gates(32), maximum=4.0, hard=True, signed=True)
    np.testing.assert_allclose(q.quantize(jnp.asarray(X), WEIGHT), X, rtol=1e-6)


@pytest.mark.slow
def test_gates_close_from_the_first_that_is_closed():
    phi = jnp.array([OPEN, SHUT, OPEN, OPEN])
    assert BayesianBits(gates=phi).width == 4
    pruned = BayesianBits(pruned="channel", gates=phi, kept=jnp.array([[OPEN, SHUT, SHUT, OPEN]]))
    q = dataclasses.replace(pruned, hard=True).start(jnp.asarray(X), WEIGHT)
    y = q.quantize(jnp.asarray(X), WEIGHT)
    assert (y[:, 1:3] == 0).all()
    assert (y[:, (0, 3)] != 0).any()
    assert q.storage((6, 4), WEIGHT) == 24 * 4 / 2 + 32 + 4
    nothing = dataclasses.replace(q, kept=jnp.full((1, 4), SHUT))
    assert nothing.width == 0
    assert (nothing.quantize(jnp.asarray(X), WEIGHT) == 0).all()
    # The threshold of section 2.3: closed where the chance of being exactly closed is .34 or more.
    edge = np.log(0.66 / 0.34) + SHIFT
    assert BayesianBits(gates=jnp.full(4, edge + 1e-3)).width == 32
    assert BayesianBits(gates=jnp.full(4, edge - 1e-3)).width == 2


@pytest.mark.slow
def test_the_penalty_and_its_gradient():
    phi, kept = np.array([0.5, -0.3, 1.0, 0.2]), np.array([[0.4, -1.0]])
    q = BayesianBits(0.1, "channel", 1.0, jnp.asarray(phi), jnp.asarray(kept), signed=True)
    x = jnp.zeros((3, 2))

    def by_hand(phi, kept):
        used = 1 / (1 + np.exp(-(phi - SHIFT)))
        chance = np.cumprod([1.0, *used])
        share = (1 / (1 + np.exp(-(kept - SHIFT)))).mean()
        return 0.1 * share * (chance * [2, 4, 8, 16, 32]).sum()

    np.testing.assert_allclose(q.penalty(x, WEIGHT), by_hand(phi, kept), rtol=1e-6)
    grads = jax.grad(lambda q: q.penalty(x, WEIGHT))(q)
    h = 1e-5
    slopes = [(by_hand(phi + d, kept) - by_hand(phi - d, kept)) / (2 * h) for d in h * np.eye(4)]
    np.testing.assert_allclose(grads.gates, slopes, rtol=1e-5)
    assert (grads.gates > 0).all()


@pytest.mark.slow
def test_drawn_gates_are_open_as_often_as_they_say():
    n, phi = 4000, np.float32(-0.5)
    q = BayesianBits(
        pruned="tensor", maximum=1.0, gates=jnp.full(4, SHUT), kept=jnp.array(phi), signed=True
    )

    def is_zero(key):
        return q.quantize(jnp.ones((1, 1)), dataclasses.replace(WEIGHT, key=key))[0, 0] == 0

    zeros = jax.vmap(is_zero)(jax.random.split(jax.random.key(0), n)).mean()
    chance = 1 / (1 + np.exp(-(phi - SHIFT)))
    assert abs(1 - zeros - chance) < 4 * np.sqrt(chance * (1 - chance) / n)


@pytest.mark.slow
def test_a_price_lowers_the_width_of_a_model():
    f, params, (x, _) = small_classifier()
    method = BayesianBits(1.0, "channel")
    spec = init(f, params, x, {"*:linear": LayerQuantization(method, BayesianBits())})
    assert all(s.activations.kept is None for s in spec.values() if s)

    def loss(spec):
        logits = quantized(f, spec, keyed=True)(KEY, params, x)
        return jnp.mean(logits**2) + penalty(f, params, x, spec)

    grads = jax.jit(jax.grad(loss))(spec)
    for setting in grads.values():
        assert (setting.weights.gates > 0).all()
        assert np.isfinite(setting.weights.kept).all()


def test_what_cannot_be():
    with pytest.raises(ValueError, match=r"gates has shape \(3,\), but there are four gates"):
        BayesianBits(gates=jnp.zeros(3))
    with pytest.raises(ValueError, match=r"BayesianBits.maximum must be positive"):
        BayesianBits(maximum=0.0)
    with pytest.raises(ValueError, match="keyed=True"):
        BayesianBits().quantize(jnp.asarray(X), dataclasses.replace(WEIGHT, key=None))
