"""Which method `moments(f)` takes: what lineage proves, what it warns of, and what it says."""

import functools
import re
import warnings

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

import jaxeff
from jaxeff.compression import Int
from jaxeff.moment_propagation import (
    Calibrated,
    Gaussian,
    MomentsError,
    MomentsWarning,
    assumptions,
    moments,
)

UNITS = 8
KEYS = jax.random.split(jax.random.key(0), 8)
KERNELS = jax.random.normal(KEYS[0], (10, UNITS, UNITS)) / np.sqrt(UNITS)
ROWS = jax.random.normal(KEYS[1], (10, 8, UNITS))


def normal(number, *shape):
    return jax.random.normal(KEYS[number], shape) / max(shape[-2], 1) ** 0.5


def random(w):
    """Noise of 5 % of a kernel's spread."""
    return jax.tree.map(lambda w: Gaussian(w, jnp.full_like(w, (0.05 * float(jnp.std(w))) ** 2)), w)


def relu(x):
    return jnp.maximum(x, 0)


# Layers of 12 tokens with 16 channels ------------------------------------------------------------

P = {
    "a": normal(2, 16, 16), "b": normal(3, 16, 16), "c": normal(4, 16, 16), "few": normal(5, 16, 4),
    "many": normal(6, 16, 100), "offset": normal(7, 1, 16)[0],
}  # fmt: skip
X = jax.random.normal(KEYS[1], (5, 12, 16))


def outer(p, x):
    v = relu(x[:, 0] @ p["a"])[:, :4]
    return (v[:, :, None] * v[:, None, :]).reshape(len(v), -1) @ p["many"]


def pooled(p, x):
    y = linen.avg_pool(x @ normal(2, 16, 16) + p["offset"], (6,), (6,))
    # XLA sums wrongly by a matrix of ones where draws are mapped over, so its numbers differ.
    return y.reshape(len(x), -1) @ normal(6, 32, 100)


ADDS_UP = {
    "a layer twice": lambda p, x: (relu(x @ p["a"]) + relu(x @ p["a"]))[:, 0] @ p["many"],
    "a certain layer behind it": lambda p, x: (
        relu(relu(x @ p["a"]) @ normal(3, 16, 16)) + relu(relu(x @ p["a"]) @ normal(3, 16, 16))
    ),
    "an outer product": outer,
    "pooled windows": pooled,
    "a mean over positions": lambda p, x: relu(x @ p["a"]).mean(1) @ p["many"],
    "a maximum over positions": lambda p, x: (x @ p["a"]).max(1) @ p["many"],
    "attention": lambda p, x: jax.nn.softmax((x @ p["a"]) @ (x @ p["b"]).mT) @ (x @ p["c"]),
    "products of all pairs": lambda p, x: (x @ p["a"]) @ (x @ p["a"]).mT,
    "a narrow code": lambda p, x: relu((x @ p["few"])[..., :2] @ normal(3, 2, 16)) @ p["many"],
}
CANCELS = {
    "dense layers": lambda p, x: relu(relu(x @ p["a"]) @ p["b"]) @ p["many"],
    "a residual block": lambda p, x: (lambda y: y + relu(y @ p["b"]) @ p["c"])(relu(x @ p["a"])),
    "a norm": lambda p, x: jax.nn.standardize(relu(x @ p["a"])) @ p["many"],
    "a kernel twice in a row": lambda p, x: jnp.tanh(jnp.tanh(x @ p["a"]) @ p["a"]),
}
PROVEN = {
    "two dense layers": lambda p, x: relu(x @ p["a"]) @ p["many"],
    "a value twice": lambda p, x: (lambda y: (y - 0.5 * y) @ p["many"])(relu(x @ p["a"])),
    "a function of one value": lambda p, x: jax.nn.silu(x @ p["a"]) @ p["many"],
    "rows of a map": lambda p, x: lax.map(lambda row: relu(row @ p["a"]) @ p["many"], x),
    "a branch": lambda p, x: lax.cond(x.sum() > 0, lambda: x @ p["a"], lambda: x @ p["b"]),
    "disjoint windows of an input": lambda p, x: linen.avg_pool(x, (6,), (6,)) @ p["many"],
}


def told(f, *args):
    return said(functools.partial(jax.eval_shape, moments(f)), *args)


def said(g, *args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        g(*args)
    return [str(w.message) for w in caught if issubclass(w.category, MomentsWarning)]


@pytest.mark.parametrize("name", [*ADDS_UP, *CANCELS, *PROVEN])
def test_the_diagonal_pass_is_taken_in_silence_where_it_is_right(name):
    f = {**ADDS_UP, **CANCELS, **PROVEN}[name]
    choice = moments(f).explain(random(P), X)
    assert choice.method == "diagonal"
    assert bool(choice.places) == (name not in PROVEN)
    said = told(f, random(P), X)
    assert len(said) == (name in ADDS_UP), said
    assert all("moments_check" in words and "calibrate_moments" in words for words in said)


@pytest.mark.parametrize("name", [*ADDS_UP, *CANCELS, *PROVEN])
def test_few_results_are_followed_where_it_is_not_proven(name):
    f = {**ADDS_UP, **CANCELS, **PROVEN}[name]
    few = lambda p, x: f(p, x).reshape(len(x), -1)[:, :4]  # noqa: E731
    choice = moments(few).explain(random(P), X)
    assert choice.method == ("diagonal" if name in PROVEN else "linear")
    assert not told(few, random(P), X)


def test_results_of_an_adapted_network_are_counted_by_examples():
    f = lambda p, x: ADDS_UP["a layer twice"](p, x)[:, :20]  # noqa: E731
    spec = {"*:linear": jaxeff.LoRA(2)}
    factors = jaxeff.adapters.init_lora(KEYS[0], f, P, (X,), spec)
    choice = moments(jaxeff.lora(f, spec)).explain(random(P), factors, X)
    assert choice.method == "linear"
    assert "few results, 20" in choice.reason


@pytest.mark.oracle
@pytest.mark.parametrize("name", [*ADDS_UP, *PROVEN])
def test_what_is_not_warned_of_is_right(name, oracle):
    f = {**ADDS_UP, **PROVEN}[name]
    few = lambda p, x: f(p, x).reshape(len(x), -1)[:, :4]  # noqa: E731
    ours = jax.jit(moments(few))(random(P), X)
    sampled = oracle.monte_carlo(few, (random(P), X), count=4000, batch=500)
    varies = sampled.var > 0  # a ReLU may be dead at all draws
    ratio = np.asarray(ours.var)[varies] / sampled.var[varies]
    assert abs(np.median(ratio) - 1) < 0.1  # a variance is known to 2.2 %
    np.testing.assert_allclose(ours.var[~varies], 0, atol=1e-12)


def test_outside_of_jit_a_warning_is_given_where_draws_tell_of_an_error():
    x, g = X[:, 0], moments(ADDS_UP["a layer twice"])
    x = jnp.broadcast_to(x[:, None], (len(x), 2, x.shape[-1]))
    none = functools.partial(jnp.full_like, fill_value=1e-12)
    # What the layer's two calls share is all of the noise, or next to nothing of it.
    far = P | {"a": random(P["a"])}
    near = P | {"a": Gaussian(P["a"], none(P["a"])), "many": random(P["many"])}
    far["many"] = Gaussian(P["many"], none(P["many"]))
    assert not said(g, near, x)
    (words,) = said(g, far, x)
    median = float(re.search(r"variances are (\S+) \(.*\) of those of 100 draws", words)[1])
    assert abs(median - 0.5) < 0.1  # a variance of 100 draws is known to 14 %
    assert said(g, far, x) == [words]  # measured once, for another posterior anew
    assert not said(g, near, x)
    (words,) = said(jax.jit(g), near, x)
    assert "may be too small" in words


# Loops -------------------------------------------------------------------------------------------


def loop(step):
    """The last state of a loop of one state, which begins at the first input."""
    return lambda w, x: lax.scan(lambda h, row: (step(h, row, w), None), x[0], x)[0]


def carried(w, x):
    """Steps hand on the kernel in their state."""

    def step(state, row):
        w, h = state
        return (w, jnp.tanh(h @ w + row)), None

    return lax.scan(step, (w, x[0]), x)[0][1]


LOOPS = {
    "recurrence": loop(lambda h, x, w: jnp.tanh(h @ w + x)),
    "added": loop(lambda h, x, w: h + jnp.tanh(h @ w)),
    "kept in part": loop(lambda h, x, w: h + 0.2 * (jnp.tanh(h @ w + x) - h)),
    "inputs that fade": loop(lambda h, x, w: 0.5 * h + x @ w),
    "entries": loop(lambda h, x, w: nnx.sigmoid(w[0]) * h + x),
    "sum": loop(lambda h, x, w: h + x @ w),
    "carried": carried,
    "rows of one kernel": lambda w, x: lax.scan(
        lambda h, row: (0.9 * h + row, None), 0 * x[0], jnp.tanh(x @ w)
    )[0],
}
"""Loops whose steps add up what the same weights make."""
OTHERS = {
    "no memory": (loop(lambda h, x, w: jnp.tanh(x @ w)), KERNELS[0]),
    "a kernel for each step": (
        lambda w, x: lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x[0], w)[0], KERNELS[:2]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_loops_that_add_up_what_one_kernel_makes_are_found(name):
    places = assumptions(LOOPS[name], random(KERNELS[0]), ROWS)
    assert any(one.adds_up for one in places)


@pytest.mark.parametrize("name", OTHERS)
def test_other_loops_add_nothing_up(name):
    f, w = OTHERS[name]
    assert not any(one.adds_up for one in assumptions(f, random(w), ROWS))
    # Noise of rows is another one at every step.
    assert not any(one.adds_up for one in assumptions(f, w, random(ROWS)))


# The choice --------------------------------------------------------------------------------------

FEW = lambda p, x: relu(x @ p["a"]).mean(1) @ p["few"]  # noqa: E731


def test_a_method_of_ones_own_is_taken_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(moments(ADDS_UP["an outer product"], method="diagonal"), random(P), X)
    assert moments(FEW, method="diagonal").explain(random(P), X).method == "diagonal"
    assert moments(FEW, method="linear").explain(random(P), X).method == "linear"
    assert moments(FEW).explain(P, X).method == "diagonal"  # nothing is random


def test_factors_have_the_method_that_they_were_measured_for():
    sites = Calibrated(random(P), {"few": jnp.full(4, 2.0)})
    results = Calibrated(random(P), {"linear result 0": jnp.full(4, 2.0)})
    for posterior, method in ((sites, "calibrated"), (results, "linear")):
        assert moments(FEW).explain(posterior, X).method == method
    plain = moments(FEW, method="diagonal")(random(P), X)
    for g in (moments(FEW), moments(FEW, method="calibrated")):
        np.testing.assert_allclose(g(sites, X).var, 2 * plain.var, rtol=1e-6)
    linear = moments(FEW)(random(P), X)
    np.testing.assert_allclose(moments(FEW)(results, X).var, 2 * linear.var, rtol=1e-6)
    with pytest.raises(ValueError, match="calibrate_moments"):
        moments(FEW, method="calibrated")(random(P), X)


@pytest.mark.parametrize(
    "f",
    [
        lambda p, x: jnp.round(FEW(p, x)),
        lambda p, x: jnp.where(FEW(p, x) > 0, 1.0, 0.0),
        lambda p, x: jaxeff.quantized(FEW, {"*": Int(4)})(p, x),
    ],
)
def test_what_has_no_slope_has_the_diagonal_pass(f):
    choice = moments(f).explain(random(P), X)
    assert choice.method == "diagonal"
    assert "no slope" in str(choice)


def test_rules_and_forms_are_the_diagonal_pass():
    for options in ({"form": "raw"}, {"rules": {lax.tanh_p: lambda node, x: [x]}}):
        assert moments(FEW, **options).explain(random(P), X).method == "diagonal"


def test_strict_refuses_what_the_diagonal_pass_assumes():
    with pytest.raises(MomentsError, match="independence would be assumed"):
        moments(ADDS_UP["an outer product"], strict=True)(random(P), X)
    moments(FEW, strict=True)(random(P), X)  # by the linear method, which assumes nothing


def test_what_is_deployed_is_the_diagonal_pass():
    g = moments(FEW)
    with pytest.warns(MomentsWarning, match="calibrate_moments.*measures factors"):
        deployed = g.deployed(random(P), X)
    expected = moments(FEW, method="diagonal")(random(P), X)
    np.testing.assert_array_equal(deployed.var, expected.var)


def test_methods_that_do_not_exist_are_named():
    with pytest.raises(ValueError, match="method 'layers' is unknown"):
        moments(FEW, method="layers")
    with pytest.raises(ValueError, match="takes no rules and no form"):
        moments(FEW, method="linear", form="raw")
