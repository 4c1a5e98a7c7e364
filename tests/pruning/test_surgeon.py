"""The optimal brain surgeon against brute-force least squares."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.compression import Uniform, quantized
from jaxeff.pruning.sparsity import Magnitude, NofM, Surgery, optimal_brain_surgeon
from jaxeff.pruning.sparsity._fitted import cheapest, refitted, removal

RNG = np.random.default_rng(0)
MIX = RNG.normal(size=(8, 8))
X = jnp.asarray(RNG.normal(size=(200, 8)) @ MIX, jnp.float32)


def net(params, x):
    return jnp.tanh(x @ params["a"]["w"]) @ params["b"]["w"]


@functools.cache
def drawn():
    rng = np.random.default_rng(1)
    return {
        "a": {"w": jnp.asarray(rng.normal(size=(8, 4)), jnp.float32)},
        "b": {"w": jnp.asarray(rng.normal(size=(4, 3)), jnp.float32)},
    }


def least_squares(x, w, keep):
    new = np.zeros_like(w)
    new[keep] = np.linalg.lstsq(x[:, keep], x @ w, rcond=None)[0]
    return new, np.square(x @ (w - new)).sum()


def test_each_step_removes_what_least_squares_misses_least():
    x = np.asarray(X, np.float64)
    w = np.asarray(drawn()["a"]["w"], np.float64)[:, 0]
    h = x.T @ x
    order, costs = removal(h, w)
    gone, before = [], 0.0
    for p, cost in zip(order, costs, strict=True):
        errors = {}
        for q in set(range(8)) - set(gone):
            keep = np.array([i not in (*gone, q) for i in range(8)])
            errors[q] = least_squares(x, w, keep)[1]
        assert p == min(errors, key=errors.get)
        np.testing.assert_allclose(errors[p] - before, cost, rtol=1e-6)
        gone, before = [*gone, p], errors[p]
    keep = np.ones(8, bool)
    keep[order[:5]] = False
    np.testing.assert_allclose(refitted(h, w, order[:5]), least_squares(x, w, keep)[0], atol=1e-8)


def test_outputs_share_a_budget_cheapest_first():
    found = [([2, 0, 1], [1.0, 5.0, 2.0]), ([1, 0, 2], [2.0, 3.0, 9.0])]
    assert cheapest(found, 3) == [[2], [1, 0]]
    assert cheapest(found, 5) == [[2, 0, 1], [1, 0]]
    assert cheapest(found, 6) == [[2, 0, 1], [1, 0, 2]]
    assert cheapest(found, 0) == [[], []]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.75, 1.0])
def test_a_share_of_a_layer_is_removed_and_the_rest_refitted(share):
    _, params, spec = optimal_brain_surgeon(net, drawn(), X, {"a": Magnitude(share)})
    new, w = (np.asarray(p["a"]["w"], np.float64) for p in (params, drawn()))
    assert (new == 0).sum() == share * 32
    x = np.asarray(X, np.float64)
    for output in range(4):
        best, _ = least_squares(x, w[:, output], new[:, output] != 0)
        np.testing.assert_allclose(new[:, output], best, atol=2e-3)
    np.testing.assert_allclose(quantized(net, spec)(params, X), net(params, X), atol=1e-5)
    np.testing.assert_array_equal(params["b"]["w"], drawn()["b"]["w"])
    simple = quantized(net, {"a": Magnitude(share)})(drawn(), X)
    error, theirs = (float(jnp.square(y - net(drawn(), X)).sum()) for y in (net(params, X), simple))
    assert error <= theirs or share == 0.0


def test_a_pattern_holds_in_every_block():
    _, params, spec = optimal_brain_surgeon(net, drawn(), X, {"a": NofM(2, 4), "b": NofM(1, 2)})
    for name, (n, m) in {"a": (2, 4), "b": (1, 2)}.items():
        w = np.asarray(params[name]["w"])
        assert ((w.reshape(-1, m, w.shape[1]) != 0).sum(1) == n).all()
    np.testing.assert_allclose(quantized(net, spec)(params, X), net(params, X), atol=1e-5)


def test_one_of_two_in_a_block_is_the_best_of_all_choices_for_one_block():
    x = np.asarray(X[:, :2], np.float64)
    w = np.array([1.0, 0.7])
    order, _ = removal(x.T @ x, w, np.zeros(2, int), 1)
    errors = [least_squares(x, w, np.array(keep))[1] for keep in ((False, True), (True, False))]
    assert order == [int(np.argmin(errors))]


def test_a_convolution_is_a_product_of_patches():
    def f(params, x):
        return jax.lax.conv_general_dilated(
            x, params["conv"]["w"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    x = jnp.asarray(RNG.normal(size=(20, 5, 5, 4)), jnp.float32)
    x = x + jnp.roll(x, 1, 3)
    params = {"conv": {"w": jnp.asarray(RNG.normal(size=(2, 2, 4, 3)), jnp.float32)}}
    _, new, _ = optimal_brain_surgeon(f, params, x, {"conv": NofM(2, 4)})
    assert ((new["conv"]["w"] != 0).sum(2) == 2).all()
    simple = quantized(f, {"conv": NofM(2, 4)})(params, x)
    exact = f(params, x)
    assert jnp.square(f(new, x) - exact).sum() < jnp.square(simple - exact).sum()


def test_other_methods_and_bad_batches_are_refused():
    for method in (Surgery(), Uniform(4), Magnitude(0.5, values=Uniform(4))):
        with pytest.raises(TypeError, match=r"at 'a' takes Magnitude\(fraction\) or NofM"):
            optimal_brain_surgeon(net, drawn(), X, {"a": method})
    with pytest.raises(ValueError, match="batch of finite numbers"):
        optimal_brain_surgeon(net, drawn(), X * jnp.nan, {"a": Magnitude(0.5)})
