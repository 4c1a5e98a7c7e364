"""What holds for every method of few bits: transformations, dtypes, strictness, odd arrays."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff import compression as jc
from jaxeff import contrib
from jaxeff.nn import small_classifier
from jaxeff.program import trace

KEY = jax.random.key(3)
WEIGHT = jc.Tensor("fc", "weights_1", "weight", 2, KEY, lambda: (1,))
DATA = jc.Tensor("fc", "input_0", "activation", 2, KEY)
W = jax.random.normal(jax.random.key(0), (8, 5))
BOTH = {
    "binary": jc.Binary(),
    "drawn": jc.Binary(stochastic=True),
    "polynomial": jc.Binary(per="none", gradient="polynomial"),
    "bases": contrib.BinaryBases(2, per="channel"),
    "ternary": jc.Ternary(per="channel"),
    "trained": jc.TrainedTernary(),
    "powers": jc.PowersOfTwo(3, per="channel"),
    "basis": contrib.LearnedBasis(2, turns=2),
    "codebook": jc.Codebook(2),
}
CASES = [(name, q, t) for name, q in BOTH.items() for t in (WEIGHT, DATA)] + [
    ("incremental", contrib.Incremental(3, 0.5), WEIGHT),
    ("half_wave", contrib.HalfWave(2), DATA),
    ("log", contrib.HalfWave(2, gradient="log"), DATA),
]
IDS = [f"{name}-{tensor.role}" for name, _, tensor in CASES]
VALUES = {"drawn": 2, "binary": 2, "polynomial": 2, "bases": 3, "ternary": 3, "trained": 3,
          "powers": 7, "basis": 4, "codebook": 4, "half_wave": 4, "log": 4}  # fmt: skip
cases = pytest.mark.parametrize(("name", "q", "tensor"), CASES, ids=IDS)


def compiled(q, x, tensor):
    return _quantized(q, x, tensor.role)


@functools.partial(jax.jit, static_argnums=2)
def _quantized(q, x, role):
    return q.quantize(x, WEIGHT if role == "weight" else DATA)


@pytest.mark.slow
@cases
def test_transformations(name, q, tensor):
    started = q.start(W, tensor)
    assert all(
        jnp.issubdtype(jnp.result_type(leaf), jnp.floating) for leaf in jax.tree.leaves(started)
    )
    eager, jitted = started.quantize(W, tensor), compiled(started, W, tensor)
    np.testing.assert_allclose(jitted, eager, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(compiled(q, W, tensor), eager, rtol=1e-5, atol=1e-5)
    if name in VALUES and tensor.role == "activation":
        assert len(np.unique(jitted)) <= VALUES[name]

    def loss(q, x):
        return jnp.sum(q.quantize(x, tensor) ** 2)

    grads = jax.jit(jax.grad(loss, (0, 1)))(started, W)
    assert all(jnp.isfinite(g).all() for g in jax.tree.leaves(grads))
    # Over arrays, and over specs.
    over_x = jax.jit(jax.vmap(lambda x: started.quantize(x, tensor)))
    both = over_x(jnp.stack([W, 2 * W]))
    if name != "drawn":  # one key draws other numbers for another shape
        np.testing.assert_allclose(both[1], compiled(started, 2 * W, tensor), rtol=1e-5, atol=1e-5)
    specs = jax.tree.map(
        lambda leaf: jnp.stack([jnp.asarray(leaf), 1.1 * jnp.asarray(leaf)]), started
    )
    over_specs = jax.jit(jax.vmap(lambda q: q.quantize(W, tensor), axis_size=2))(specs)
    np.testing.assert_allclose(over_specs[0], eager, rtol=1e-5, atol=1e-5)


@cases
def test_narrow_dtypes_stay(name, q, tensor):
    def both(x):
        return q.quantize(x, tensor), q.start(x, tensor).quantize(x, tensor)

    half = jax.eval_shape(both, W.astype(jnp.float16))
    assert {y.dtype for y in half} == {jnp.dtype(jnp.float16)}
    x = W.astype(jnp.bfloat16)
    y, started = jax.jit(both)(x)
    assert {y.dtype, started.dtype} == {jnp.dtype(jnp.bfloat16)}
    assert jnp.isfinite(y).all()
    assert jnp.isfinite(started).all()
    # Codes are those of the wide numbers nearly everywhere.
    wide = compiled(q, x.astype(jnp.float32), tensor)
    near = jnp.abs(y.astype(jnp.float32) - wide) < 0.05 * (1 + jnp.abs(wide))
    assert jnp.mean(near) > 0.9


@pytest.mark.slow
@cases
def test_odd_arrays(name, q, tensor):
    zeros = jnp.zeros((4, 2))
    signs = name == "polynomial"
    np.testing.assert_array_equal(compiled(q, zeros, tensor), 1 if signs else 0)
    started = q.start(zeros, tensor)
    np.testing.assert_array_equal(compiled(started, zeros, tensor), 1 if signs else 0)
    for constant in (zeros + 0.3, zeros - 0.3, zeros[:1, :1] + 0.3):
        if name == "codebook" and constant.size == 1:
            with pytest.raises(ValueError, match=r"fc/.*fewer bits"):
                compiled(q, constant, tensor)
            continue
        y = compiled(q, constant, tensor)
        assert jnp.isfinite(y).all()
        if name in {"ternary", "trained", "bases", "codebook"} and tensor.role == "weight":
            np.testing.assert_allclose(y, constant, rtol=1e-6)
        slope = jax.jit(jax.grad(lambda x: q.quantize(x, tensor).sum()))(constant)
        assert jnp.isfinite(slope).all()
    # NaN stays NaN and doesn't become a value.
    poisoned = W.at[0, 0].set(jnp.nan)
    assert jnp.isnan(compiled(q.start(W, tensor), poisoned, tensor)[0, 0])


METHODS = (
    jc.LayerQuantization(jc.Binary(follow=True), contrib.HalfWave(2)),
    jc.LayerQuantization(contrib.BinaryBases(2), contrib.BinaryBases(2)),
    jc.LayerQuantization(jc.TrainedTernary(per="channel"), jc.Ternary()),
    jc.LayerQuantization(contrib.LearnedBasis(2), contrib.LearnedBasis(2)),
    jc.LayerQuantization(jc.Codebook(2), jc.Codebook(3)),
    jc.LayerQuantization(contrib.Incremental(4, 0.5), jc.PowersOfTwo(3)),
)


@pytest.mark.slow
@pytest.mark.parametrize("three", [METHODS[:3], METHODS[3:]])
@pytest.mark.promotes("dtype", "rank")
def test_a_model_learns_parameters_and_spec_under_one_gradient(three):
    f, params, (x, y) = small_classifier()
    x, y = x[:32], y[:32]
    sites = [site.site for site in trace(f, params, x).sites if site.kind == "linear"]
    spec = jc.init(f, params, x, dict(zip(sites, three, strict=True)))

    def loss(both):
        logits = jc.learned(f)(both, x)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

    of_params, of_spec = jax.jit(jax.grad(loss))((params, spec))
    leaves = jax.tree.leaves(of_spec)
    assert all(jnp.isfinite(g).all() for g in (*leaves, *jax.tree.leaves(of_params)))
    for site, method in zip(sites, three, strict=True):
        learns = not isinstance(
            method.weights, contrib.Incremental
        )  # whole exponents have no gradient
        assert any(jnp.any(g != 0) for g in jax.tree.leaves(of_spec[site])) == learns


def test_methods_say_what_they_are_for():
    with pytest.raises(ValueError, match="fc/input_0 is an activation: write LayerQuantization"):
        contrib.Incremental(4).quantize(W, DATA)
    with pytest.raises(ValueError, match="fc/weights_1 is a weight: write LayerQuantization"):
        contrib.HalfWave(2).quantize(W, WEIGHT)


@pytest.mark.parametrize("q", [
    lambda: contrib.BinaryBases(2, jnp.ones(3)),
    lambda: contrib.LearnedBasis(2, jnp.ones((1, 3))),
    lambda: jc.Codebook(2, jnp.ones(3)),
])  # fmt: skip
def test_numbers_that_are_too_few_or_too_many(q):
    with pytest.raises(ValueError, match=r"has shape .*last axis"):
        q()


@pytest.mark.parametrize("q", [
    contrib.BinaryBases(2, None, jnp.ones((3, 2))), contrib.LearnedBasis(2, jnp.ones((3, 2))),
    jc.Codebook(1, jnp.ones((3, 2))), jc.Ternary(scale=jnp.ones(3)),
    jc.TrainedTernary(positive=jnp.ones(3)),
    jc.PowersOfTwo(3, jnp.ones(3)), contrib.Incremental(3, top=jnp.ones(3)),
])  # fmt: skip
def test_numbers_of_another_model(q):
    with pytest.raises(ValueError, match=r"at fc/weights_1 has shape \(3,\)"):
        q.quantize(W, WEIGHT)


@pytest.mark.parametrize("make", [
    lambda: jc.PowersOfTwo(1), lambda: jc.PowersOfTwo(2.5), lambda: contrib.Incremental(9),
    lambda: contrib.Incremental(4, 1.5), lambda: contrib.HalfWave(0), lambda: jc.Codebook(9),
    lambda: contrib.LearnedBasis(9), lambda: contrib.BinaryBases(0), lambda: jc.Ternary(-0.1),
    lambda: jc.TrainedTernary(positive=jnp.nan),
    lambda: contrib.HalfWave(2, gradient="tanh"), lambda: jc.PowersOfTwo(jnp.array([3, 9])),
])  # fmt: skip
def test_numbers_out_of_bounds(make):
    with pytest.raises((TypeError, ValueError), match="must be"):
        make()


WEIGHTS_OF_CODES = {
    "binary": jc.Binary(),
    "binary, one scale": jc.Binary(per="tensor"),
    "signs": jc.Binary(per="none"),
    "a scale below zero": jc.Binary(scale=-0.5, per="tensor"),
    "ternary": jc.Ternary(),
    "ternary by channel": jc.Ternary(per="channel"),
}


@pytest.mark.parametrize("name", WEIGHTS_OF_CODES)
def test_two_and_three_values_of_weights_become_codes(name):
    q = WEIGHTS_OF_CODES[name]
    params = {"a": jax.random.normal(KEY, (20, 16)), "b": jax.random.normal(KEY, (16, 4))}
    x = jax.random.normal(jax.random.key(5), (6, 20))

    def f(p, x):
        return jax.nn.relu(x @ p["a"]) @ p["b"]

    setting = jc.LayerQuantization(q, jc.Uniform(8))
    spec = jc.calibrate(f, params, [x], {"*:linear": setting}).spec
    g = jc.integer(f, spec)
    codes = g.convert(params, x)
    largest = {n: int(jnp.abs(v).max()) for n, v in codes.arrays.items() if v.dtype == jnp.int8}
    assert set(largest.values()) == {1}
    # The same products, of which rounding differs: float32's last bits.
    want = jc.quantized(f, spec)(params, x)
    np.testing.assert_allclose(g(codes, x), want, rtol=0, atol=1e-6 * jnp.abs(want).max())


@pytest.mark.parametrize("q", [jc.Binary(), jc.Ternary()])
def test_two_and_three_values_of_activations_are_refused(q):
    def f(p, x):
        return x @ p

    spec = jc.init(f, W, W.T, {"*:linear": jc.LayerQuantization(q, q)})
    with pytest.raises(jc.IntegerError, match=f"input_0.*{type(q).__name__}"):
        jc.integer(f, spec).convert(W, W.T)
