"""Sparse weights: which are kept, their gradients, what they take, and that transforms compose."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxeff
from jaxeff.compression import (
    LayerQuantization,
    Uniform,
    init,
    memory,
    quantized,
    update_statistics,
)
from jaxeff.pruning.sparsity import FixedMask, Magnitude, NofM, RandomMask, Surgery, cubic_schedule
from jaxeff.training import fit

X = jax.random.normal(jax.random.key(0), (6, 4, 4, 2))


def net(params, x):
    x = jax.lax.conv_general_dilated(
        x, params["conv"]["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return jax.nn.relu(x).reshape(x.shape[0], -1) @ params["fc"]["w"]


@functools.cache
def drawn():
    with jax.ensure_compile_time_eval():  # kept beyond the trace that may be the first to ask
        keys = jax.random.split(jax.random.key(1))
        return {
            "conv": {"w": jax.random.normal(keys[0], (3, 3, 2, 5))},
            "fc": {"w": jax.random.normal(keys[1], (80, 3))},
        }


def weights(spec, params=None):
    """The weights that a function's layers multiply by, read from what they do to unit inputs."""
    params = drawn() if params is None else params
    matrix = jax.vmap(lambda row: quantized(lambda p, x: x @ p["fc"]["w"], spec)(params, row[None]))
    return matrix(jnp.eye(80))[:, 0]


@pytest.mark.slow
def test_magnitude_keeps_the_largest():
    w = np.asarray(drawn()["fc"]["w"])
    ours = weights({"fc": Magnitude(0.75)})
    least = np.sort(np.abs(w).ravel())[-60]
    np.testing.assert_array_equal(ours, np.where(np.abs(w) >= least, w, 0))
    assert (weights({"fc": Magnitude(1.0)}) == 0).all()
    np.testing.assert_array_equal(weights({"fc": Magnitude(0.0)}), w)


@pytest.mark.slow
def test_a_share_is_a_leaf_and_many_are_one_program():
    def left(share):
        return (quantized(net, {"fc": Magnitude(share)})(drawn(), X) ** 2).sum()

    shares = jnp.array([0.0, 0.5, 0.9])
    many = jax.jit(jax.vmap(left))(shares)
    np.testing.assert_allclose(many, [left(float(s)) for s in shares], rtol=1e-5)


def test_the_gradient_is_that_of_all_weights_or_of_those_kept():
    def loss(w, gradient):
        f = quantized(net, {"fc": Magnitude(0.5, gradient=gradient)})
        return jnp.square(f({**drawn(), "fc": {"w": w}}, X)).sum()

    w = drawn()["fc"]["w"]
    sparse = weights({"fc": Magnitude(0.5)})
    exact = jax.grad(lambda w: jnp.square(net({**drawn(), "fc": {"w": w}}, X)).sum())(sparse)
    np.testing.assert_allclose(jax.grad(loss)(w, "all"), exact, rtol=1e-4, atol=1e-4)
    kept = jnp.where(sparse == 0, 0, exact)
    np.testing.assert_allclose(jax.grad(loss)(w, "kept"), kept, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_n_of_m_keeps_n_of_every_block_of_inputs(n):
    ours = np.asarray(weights({"fc": NofM(n, 4)}))
    w = np.asarray(drawn()["fc"]["w"])
    for output in range(3):
        for block in range(20):
            here = slice(4 * block, 4 * block + 4)
            best = np.sort(np.argsort(-np.abs(w[here, output]))[:n])
            np.testing.assert_array_equal(np.flatnonzero(ours[here, output]), best)
            np.testing.assert_array_equal(ours[here, output][best], w[here, output][best])


def test_blocks_run_along_the_inputs_of_a_convolution():
    kept = NofM(1, 2)
    spec = init(net, drawn(), X, {"conv": kept})
    g = quantized(net, spec)
    w = np.asarray(drawn()["conv"]["w"])
    larger = np.abs(w) == np.abs(w).max(2, keepdims=True)
    by_hand = {**drawn(), "conv": {"w": jnp.where(larger, w, 0)}}
    np.testing.assert_allclose(g(drawn(), X), net(by_hand, X), rtol=1e-5, atol=1e-5)
    with pytest.raises(
        ValueError, match=r"NofM\(2, 4\): 'conv' sums 18 inputs, which are no blocks"
    ):
        quantized(net, {"conv": NofM(2, 4)})(drawn(), X)
    with pytest.raises(ValueError, match="n = 4 is above m = 2"):
        NofM(4, 2)


def test_random_masks_depend_on_the_site_and_the_seed():
    one, again, other = (weights({"fc": RandomMask(0.5, seed)}) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert ((one == 0) != (other == 0)).any()
    assert (one == 0).sum() == 120


@pytest.mark.slow
def test_values_of_what_is_kept_are_quantized_and_zeros_stay_zeros():
    ours = weights({"fc": Magnitude(0.5, values=Uniform(4))})
    dense = weights({"fc": LayerQuantization(weights=Uniform(4))})
    mask = weights({"fc": Magnitude(0.5)}) != 0
    np.testing.assert_array_equal(ours, jnp.where(mask, dense, 0))
    both = jaxeff.quantized(
        jaxeff.quantized(net, {"fc": NofM(2, 4)}), {"*:linear": jaxeff.Int(8, weights=False)}
    )
    assert both(drawn(), X).shape == (6, 3)
    with pytest.raises(TypeError, match=r"such as Uniform\(8\)"):
        Magnitude(0.5, values=jaxeff.Int(8))


@pytest.mark.parametrize(
    ("method", "bits"),
    [
        (Magnitude(0.75), 240 + 60 * 32),
        (Magnitude(0.75, stored="dense"), 240 * 32),
        (Magnitude(0.75, stored="csr"), 60 * (32 + 8) + 4 * 32),
        (Magnitude(0.75, values=Uniform(4, True)), 240 + 60 * 4 + 3 * 32),
        (NofM(2, 4), 120 * (32 + 2)),
        (NofM(1, 4, values=Uniform(8, True)), 60 * (8 + 2) + 3 * 32),
        (NofM(2, 4, stored="dense"), 240 * 32),
        (RandomMask(0.75), 240 + 60 * 32),
        (FixedMask(np.arange(240).reshape(80, 3) < 30), 240 + 30 * 32),
    ],
)
def test_what_sparse_arrays_take(method, bits):
    spec = {"fc": method}
    assert memory(net, drawn(), X, spec) == bits
    # In a cost it is stored with the rest of the model.
    rest = 4 * drawn()["conv"]["w"].size
    assert jaxeff.cost(quantized(net, spec), drawn(), X).size == rest + bits // 8


def test_the_cubic_schedule_is_the_papers():
    share = cubic_schedule(0.9, begin=10, end=110, initial=0.1)
    for t in (0, 10, 35, 60, 110, 200):
        done = min(max(t - 10, 0) / 100, 1)
        np.testing.assert_allclose(share(t), 0.9 + (0.1 - 0.9) * (1 - done) ** 3, rtol=1e-6)
    with pytest.raises(ValueError, match="cubic_schedule: end"):
        cubic_schedule(0.9, begin=10, end=10)


def test_surgery_removes_and_splices_with_a_margin():
    w = jnp.array([[0.1, 0.5, 0.96, 1.04, 2.0]])
    tensor = jaxeff.compression.Tensor("fc", "weights_1", "weight", 2)
    method = Surgery(threshold=1.0).start(w, tensor)
    assert method.where.tolist() == [[False, False, False, True, True]]
    grown = jnp.array([[1.2, 0.5, 1.05, 0.95, 0.8]])
    again = method.update_statistics(grown, tensor)
    # Back above 1.1, gone below .9, and in between what it was.
    assert again.where.tolist() == [[True, False, False, True, False]]
    np.testing.assert_allclose(again.quantize(grown, tensor), [[1.2, 0, 0, 0.95, 0]])
    open_ = Surgery(0.5).start(w, tensor)
    np.testing.assert_allclose(open_.threshold, w.mean() + 0.5 * w.std(), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.promotes("dtype")
def test_surgery_in_training_lets_weights_come_back():
    # A target that needs the weights that are small at first.
    x = jax.random.normal(jax.random.key(0), (64, 4))
    params = {"fc": {"w": jnp.array([[2.0], [1.9], [0.1], [0.05]])}}
    y = x[:, 2:].sum(1, keepdims=True)

    def f(params, x):
        return x @ params["fc"]["w"]

    spec = init(f, params, x, {"fc": Surgery()})
    assert spec["fc"].weights.where.ravel().tolist() == [True, True, False, False]

    def loss(key, params, state, batch, step):
        x, y = batch
        spec = update_statistics(f, params, x, state)
        error = jnp.square(quantized(f, spec)(params, x) - y).mean()
        return error, ({}, spec)

    run = fit(jax.random.key(0), loss, params, (x, y), state=spec, optimizer=optax.adam(0.1),
              epochs=20, batch_size=16, progress=False)  # fmt: skip
    assert run.state["fc"].weights.where.ravel().tolist() == [False, False, True, True]


def test_sparse_methods_refuse_activations():
    with pytest.raises(ValueError, match=r"Magnitude removes weights, and fc/input_0"):
        quantized(net, {"fc": LayerQuantization(activations=Magnitude(0.5))})(drawn(), X)
    with pytest.raises(ValueError, match=r"FixedMask\.where at 'fc' has shape"):
        quantized(net, {"fc": FixedMask(np.ones((3, 80), bool))})(drawn(), X)
    with pytest.raises(ValueError, match=r"Magnitude\.fraction must be between 0 and 1"):
        Magnitude(1.5)
