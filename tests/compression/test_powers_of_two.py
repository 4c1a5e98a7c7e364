"""`PowersOfTwo` and `Incremental` against the equations of INQ, by NumPy; its schedule in `fit`."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxeff import compression as jc
from jaxeff import contrib
from jaxeff.hardening import incremental_noise
from jaxeff.training import cross_entropy, fit
from tests.compression.tensors import DATA, WEIGHT

W = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
G = np.random.default_rng(1).normal(size=(9, 4)).astype(np.float32)
X = jnp.asarray(W)


def inq(w, n1, n2):
    """Zhou et al., eq. 4: beta sgn(w) where (alpha + beta)/2 <= |w| < 3 beta/2, else zero."""
    levels = np.concatenate([[0.0], 2.0 ** np.arange(n2, n1 + 1)])
    value = np.zeros_like(w)
    for alpha, beta in itertools.pairwise(levels):
        chosen = ((alpha + beta) / 2 <= np.abs(w)) & (np.abs(w) < 3 * beta / 2)
        value = np.where(chosen, beta * np.sign(w), value)
    return value


@pytest.mark.parametrize("bits", [2, 3, 5])
@pytest.mark.parametrize("scale", [1.0, 0.013, 300.0])
def test_all_weights_are_the_powers_of_equations_1_to_4(bits, scale):
    w = (scale * W).astype(np.float32)
    n1 = int(np.floor(np.log2(4 * np.abs(w).max() / 3)))
    n2 = n1 + 1 - 2 ** (bits - 2)
    ours = contrib.Incremental(bits).quantize(jnp.asarray(w), WEIGHT)
    np.testing.assert_array_equal(ours, inq(w, n1, n2))
    np.testing.assert_array_equal(contrib.Incremental(bits).quantize(ours, WEIGHT), ours)
    traced = jax.jit(lambda b, x: contrib.Incremental(b).quantize(x, WEIGHT))(jnp.array(bits), w)
    np.testing.assert_array_equal(traced, ours)


@pytest.mark.slow
def test_values_in_the_middle_belong_to_the_larger():
    x = jnp.array([[0.25, 0.2499, 0.75, 1.5, -1.5, 0.0, 2.9, 100.0]])
    ours = jc.PowersOfTwo(3, 1.0).quantize(x, WEIGHT)  # 3 exponents: 1/2, 1, 2
    np.testing.assert_array_equal(ours, [[0.5, 0, 1, 2, -2, 0, 2, 2]])
    ours = jc.PowersOfTwo(3, 1.0, nearest="exponent").quantize(x, WEIGHT)
    np.testing.assert_array_equal(ours, [[0.5, 0, 1, 2, -2, 0, 2, 2]])
    near = jnp.array([[0.72, 0.70]])  # the square root of a half is between
    ours = jc.PowersOfTwo(3, 1.0, nearest="exponent").quantize(near, WEIGHT)
    np.testing.assert_array_equal(ours, [[1.0, 0.5]])


def test_all_codes_are_used():
    x = jnp.linspace(-1, 1, 4001)[:, None]
    assert len(np.unique(jc.PowersOfTwo(4).quantize(x, WEIGHT))) == 2**4 - 1
    unsigned = jc.PowersOfTwo(3).quantize(jnp.abs(x), DATA)
    assert len(np.unique(unsigned)) == 2**3
    assert jc.PowersOfTwo(3).start(jnp.abs(x), DATA).signed is False
    assert (jc.PowersOfTwo(3, 0.0, signed=False).quantize(x, DATA) >= 0).all()


def test_widths_and_exponents_are_swept_in_one_program():
    tops = jnp.array([-1.0, 0.0, 1.0])
    both = jax.jit(jax.vmap(lambda b, t: jc.PowersOfTwo(b, t).quantize(X, WEIGHT)))
    ours = both(jnp.array([2, 3, 4]), tops)
    for i, (bits, top) in enumerate(((2, -1), (3, 0), (4, 1))):
        by_hand = jc.PowersOfTwo(bits, float(top)).quantize(X, WEIGHT)
        np.testing.assert_array_equal(ours[i], by_hand)


def test_a_gradient_of_one():
    slope = jax.grad(lambda x: jnp.vdot(G, jc.PowersOfTwo(3).quantize(x, WEIGHT)))(X)
    np.testing.assert_allclose(slope, G, rtol=1e-6)


@pytest.mark.parametrize("fraction", [0.0, 0.5, 0.75, 1.0])
def test_the_largest_weights_first(fraction):
    # Zhou et al., eq. 8: quantized weights have no gradient, the others stay as they are.
    count = round(fraction * W.size)
    done = np.zeros(W.size, bool)
    done[np.argsort(-np.abs(W), axis=None)[:count]] = True
    done = done.reshape(W.shape)
    full = contrib.Incremental(4).quantize(X, WEIGHT)

    @jax.jit
    def both(fraction):
        q = contrib.Incremental(4, fraction)
        return q.quantize(X, WEIGHT), jax.grad(lambda x: jnp.vdot(G, q.quantize(x, WEIGHT)))(X)

    y, slope = both(fraction)
    np.testing.assert_array_equal(y, np.where(done, full, W))
    np.testing.assert_array_equal(slope, np.where(done, 0, G))


def test_shares_follow_the_step_without_a_second_trace():
    schedule, traces = contrib.share_schedule(3), []

    @jax.jit
    def share(step):
        traces.append(step)
        return schedule(step)

    found = [float(share(step)) for step in range(11)]
    assert found == [0.5] * 3 + [0.75] * 3 + [0.875] * 3 + [1.0] * 2
    assert len(traces) == 1


def test_weights_are_moved_and_held():
    transform = contrib.incremental_quantization(
        contrib.Incremental(4), contrib.share_schedule(1, (0.5, 1.0))
    )
    params = {"kernel": X}
    state = transform.init(params)
    first, state = transform.update({"kernel": jnp.asarray(G)}, state, params)
    once = optax.apply_updates(params, first)["kernel"]
    done = np.abs(W) >= np.sort(np.abs(W), axis=None)[W.size // 2]
    full = contrib.Incremental(4).quantize(X, WEIGHT)
    np.testing.assert_array_equal(once, np.where(done, full, X + G))
    # The second update, however large, leaves those alone and moves the rest.
    second, state = transform.update({"kernel": 10 * jnp.asarray(G)}, state, {"kernel": once})
    twice = optax.apply_updates({"kernel": once}, second)["kernel"]
    np.testing.assert_array_equal(np.where(done, twice, 0), np.where(done, once, 0))
    top = state.top["kernel"]
    np.testing.assert_array_equal(twice, contrib.Incremental(4, top=top).quantize(twice, WEIGHT))
    with pytest.raises(ValueError, match="pass update the parameters"):
        transform.update({"kernel": X}, state)


@pytest.mark.slow
@pytest.mark.promotes("dtype", "rank")  # Adam, and f
def test_incremental_training_ends_with_powers_of_two():
    x = jax.random.normal(jax.random.key(0), (64, 3))
    y = (x[:, 0] * x[:, 1] > 0).astype(jnp.int32)
    keys = jax.random.split(jax.random.key(1), 2)
    params = {
        "fc1": {"kernel": jax.random.normal(keys[0], (3, 8)), "bias": jnp.full(8, 0.1)},
        "fc2": {"kernel": jax.random.normal(keys[1], (8, 2)), "bias": jnp.full(2, 0.1)},
    }

    def f(params, x):
        hidden = jax.nn.relu(x @ params["fc1"]["kernel"] + params["fc1"]["bias"])
        return hidden @ params["fc2"]["kernel"] + params["fc2"]["bias"]

    def kernels(params):
        return jax.tree_util.tree_map_with_path(lambda path, w: "kernel" in str(path[-1]), params)

    each = 16  # updates, two epochs
    inq = contrib.incremental_quantization(contrib.Incremental(5), contrib.share_schedule(each))
    adam = optax.adam(1e-2)
    after = optax.chain(adam, optax.masked(inq, kernels))
    run = fit(jax.random.key(0), cross_entropy(f), params, (x, y),
              optimizer=after, epochs=10, batch_size=8, progress=False)  # fmt: skip
    for path, w in jax.tree_util.tree_leaves_with_path(run.params):
        fraction = np.frexp(np.abs(np.asarray(w)))[0]
        powers = np.isin(fraction, [0.0, 0.5]).all()
        assert powers == ("kernel" in str(path[-1]))
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    # A schedule of the step works for the quantizer as well, as one for noise does.
    growing = incremental_noise(
        lambda share: cross_entropy(
            jc.quantized(f, {"fc*": jc.LayerQuantization(contrib.Incremental(5, share))})
        ),
        contrib.share_schedule(each),
    )
    run = fit(jax.random.key(0), growing(1.0), params, (x, y),
              optimizer=adam, epochs=10, batch_size=8, progress=False)  # fmt: skip
    assert run.history[-1]["loss"] < run.history[0]["loss"]


def test_bits_of_an_array():
    assert jc.PowersOfTwo(4, per="channel").storage((9, 4), WEIGHT) == 36 * 4 + 4 * 8
    assert contrib.Incremental(5).storage((9, 4), WEIGHT) == 36 * 5 + 8
