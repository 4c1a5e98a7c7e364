"""The joint operators against numpy, in every form, and compiled moment passes against JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tvm
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jaxeff_export import deploy
from jaxeff_export.compiler import compile_module
from jaxeff_export.operators import OPERATORS, Form, Optimizations, dense_kernel, dense_module
from scipy import special
from tvm import relax

import jaxeff
from jaxeff.moment_propagation import Gaussian
from jaxeff.moment_propagation.rules import maximum, near, relu, tail
from jaxeff.nn import LeNet5

FORMS = [
    Form(x, w, b)
    for x in ("deterministic", "variance", "raw")
    for w in ("deterministic", "variance")
    for b in ("none", "deterministic", "variance")
    if (x, w) != ("deterministic", "deterministic")
]


def run(mod: tvm.IRModule, *arrays: np.ndarray) -> list[np.ndarray]:
    machine = relax.VirtualMachine(compile_module(mod), tvm.cpu())
    return [r.numpy() for r in machine["main"](*map(tvm.runtime.tensor, arrays))]


def operands(form: Form, x_shape, w_shape, scale=1.0, dtype="float32"):
    """Mean and variance of input, weight and bias, and the operands that hand them over."""
    rng = np.random.default_rng(0)
    pairs, given_ = [], []
    for shape, kind in ((x_shape, form.input), (w_shape, form.weight), (w_shape[-1:], form.bias)):
        mean = rng.normal(size=shape).astype(dtype)
        var = (scale * rng.uniform(0.1, 1.0, shape)).astype(dtype)
        if kind in ("none", "deterministic"):
            var = np.zeros_like(var)
        if kind == "none":
            mean = np.zeros_like(mean)
        else:
            given_.append(mean)
        if kind == "variance":
            given_.append(var)
        if kind == "raw":
            given_.append(mean * mean + var)
        pairs.append((np.float64(mean), np.float64(var)))
    return pairs, given_


def emitted(name: str, arrays: list[np.ndarray], **attributes) -> list[np.ndarray]:
    bb = relax.BlockBuilder()
    arguments = [
        relax.Var(f"x{i}", relax.TensorType(a.shape, str(a.dtype))) for i, a in enumerate(arrays)
    ]
    with bb.function("main", arguments):
        with bb.dataflow():
            results = OPERATORS[name](bb, *arguments, **attributes)
            results = results if isinstance(results, list) else [results]
            output = bb.emit_output(relax.Tuple(results))
        bb.emit_func_output(output)
    return run(bb.get(), *arrays)


def expected(op, pairs):
    (x, vx), (w, vw), (b, vb) = pairs
    return op(x, w) + b, op(x * x, vw) + op(vx, w * w) + op(vx, vw) + vb


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f"{f.input}-{f.weight}-{f.bias}")
def test_dense_forms(form):
    pairs, arrays = operands(form, (3, 40), (40, 18))
    results = emitted("jaxeff.pfp_dense", arrays, **vars(form))
    for ours, theirs in zip(results, expected(np.matmul, pairs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    rows=st.integers(1, 13),
    depth=st.integers(1, 70),
    columns=st.sampled_from([1, 3, 6, 10, 16, 17, 33, 100, 112]),
    leading=st.sampled_from([(), (2,), (2, 1)]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_dense_shapes(rows, depth, columns, leading, dtype):
    form = Form("variance", "variance", "variance")
    pairs, arrays = operands(form, (*leading, rows, depth), (depth, columns), dtype=dtype)
    mean, var = emitted("jaxeff.pfp_dense", arrays, **vars(form))
    assert mean.dtype == var.dtype == dtype
    for ours, theirs in zip((mean, var), expected(np.matmul, pairs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_convolutions(data):
    draw = data.draw
    groups = draw(st.sampled_from([1, 1, 2]))
    channels, features = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 9))
    size, kernel = draw(st.tuples(st.integers(5, 9), st.integers(5, 9))), draw(st.integers(1, 3))
    strides, dilation = draw(st.tuples(*[st.integers(1, 2)] * 2)), draw(st.integers(1, 2))
    padding = draw(st.tuples(*[st.integers(0, 2)] * 4))
    form = draw(st.sampled_from(FORMS))
    x_shape, w_shape = (2, *size, channels), (kernel, kernel, channels // groups, features)
    pairs, arrays = operands(form, x_shape, w_shape)

    def convolve(x, w):
        with jax.enable_x64(True):
            result = lax.conv_general_dilated(
                x,
                w,
                strides,
                [padding[:2], padding[2:]],
                rhs_dilation=(dilation, dilation),
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
                feature_group_count=groups,
            )
            return np.asarray(result)

    results = emitted(
        "jaxeff.pfp_conv2d",
        arrays,
        **vars(form),
        strides=strides,
        padding=padding,
        dilation=(dilation, dilation),
        groups=groups,
    )
    for ours, theirs in zip(results, expected(convolve, pairs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-12])
def test_zero_and_tiny_variances(scale):
    form = Form("variance", "variance", "variance")
    pairs, arrays = operands(form, (4, 30), (30, 20), scale)
    mean, var = emitted("jaxeff.pfp_dense", arrays, **vars(form))
    assert np.isfinite(mean).all()
    np.testing.assert_allclose(var, expected(np.matmul, pairs)[1], rtol=1e-5, atol=1e-36)
    form = Form("raw", "variance", "none")
    _, arrays = operands(form, (4, 30), (30, 20), scale)
    assert (emitted("jaxeff.pfp_dense", arrays, **vars(form))[1] >= 0).all()


def test_separate_kernels_give_the_same():
    _, arrays = operands(Form(), (5, 32), (32, 16))
    joint, separate = (run(dense_module(5, 32, 16, joint=j), *arrays) for j in (True, False))
    for a, b in zip(joint, separate, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "on",
    [
        (),
        ("tiling",),
        ("reordering",),
        ("vectorization",),
        ("parallelization",),
        ("unrolling",),
        ("reordering", "vectorization", "parallelization", "unrolling"),
        ("tiling", "reordering", "vectorization", "parallelization", "unrolling"),
    ],
    ids="+".join,
)
def test_manual_optimizations_give_the_same(on):
    pairs, arrays = operands(Form(), (10, 48), (48, 20))
    kernel = dense_kernel(10, 48, 20, Optimizations(**dict.fromkeys(on, True)), lanes=4)
    compiled = tvm.compile(
        tvm.IRModule({"main": kernel.with_attr("global_symbol", "main")}), "llvm"
    )
    results = [tvm.runtime.tensor(np.zeros((10, 20), "float32")) for _ in range(2)]
    compiled["main"](*map(tvm.runtime.tensor, arrays), *results)
    for ours, theirs in zip(results, expected(np.matmul, pairs), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5, atol=1e-5)


def test_forms_are_checked():
    with pytest.raises(ValueError, match="'exact' is unknown"):
        Form(input="exact")
    with pytest.raises(ValueError, match="nothing is random"):
        Form("deterministic", "deterministic")
    with pytest.raises(ValueError, match="3 operands do not make"):
        Form().operands([None] * 3)


def test_a_layer_becomes_one_kernel_of_two_results():
    """The joint operator is one kernel; so is an activation, which has no operator of its own."""
    params = {"w": Gaussian(jnp.ones((20, 16)), jnp.ones((20, 16)))}
    f = jaxeff.moments(lambda p, x: jax.nn.relu(x @ p["w"]), method="diagonal")
    bundle = deploy(f, (params, jnp.ones((2, 20))))
    names = [operator.name for operator in bundle.profile(number=1)]
    assert len(names) == 2
    assert sum("pfp_dense" in name for name in names) == 1


def test_compiled_tails_are_as_exact_as_stated():
    """Density, tail and exceedance to 1e-6 relative; zero from 10 standard deviations on."""
    a = np.linspace(0, 12, 4801, dtype="float32")
    bundle = deploy(lambda _, a: tuple(tail(near(a))), ((), a))
    pdf, prob, h = bundle.run(a)
    inside = a < 10
    exact = np.float64(a[inside])
    reference = np.exp(-0.5 * exact**2) / np.sqrt(2 * np.pi)
    # rounding a * a moves the exponential by up to a^2 / 2 units in the last place
    bound = 2e-7 * (1 + exact**2 / 2)
    assert (np.abs(pdf[inside] / reference - 1) < bound).all()
    assert (np.abs(prob[inside] / special.ndtr(-exact) - 1) < bound).all()
    # A quotient of sums of what is positive: exact where the difference phi - a Q is rounding.
    exceedance = reference * (1 - exact * np.sqrt(np.pi / 2) * special.erfcx(exact / np.sqrt(2)))
    assert (np.abs(h[inside] / exceedance - 1) < bound).all()
    assert not pdf[~inside].any()
    assert not prob[~inside].any()


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e-10, 1.0, 1e10])
def test_compiled_activations_stay_finite(scale):
    rng = np.random.default_rng(1)
    mean, other = rng.normal(size=(2, 500)).astype("float32")
    var = (scale * rng.uniform(0, 1, 500)).astype("float32")

    def f(_, m, n, v):
        pair = maximum(Gaussian(m, v), Gaussian(n, v))
        return relu(Gaussian(m, v)), pair

    bundle = deploy(f, ((), mean, other, var))
    assert bundle.check().passed
    for leaf in jax.tree.leaves(bundle.run(mean, other, var)):
        assert np.isfinite(leaf).all()


@pytest.fixture(scope="module")
def lenet():
    """LeNet-5's moment pass, and what JAX makes of two images."""
    f, params = jaxeff.functional(LeNet5(rngs=nnx.Rngs(0)))
    belief = jax.tree.map(lambda w: Gaussian(w, 1e-3 + 0.01 * w * w), params)
    x = jax.random.uniform(jax.random.key(1), (2, 28, 28, 1))
    g = jaxeff.moments(f, method="diagonal")
    return g, (belief, x), jax.jit(g)(belief, x)


def assert_within_1e_5(ours, theirs):
    """Of the variance entry by entry; of the mean, which may be near zero, of its scale."""
    np.testing.assert_allclose(ours.var, theirs.var, rtol=1e-5)
    scale = np.abs(theirs.mean).max()
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=0, atol=1e-5 * scale)


@pytest.mark.slow
def test_lenet_on_the_host(lenet):
    g, args, theirs = lenet
    assert_within_1e_5(deploy(g, args).run(args[1]), theirs)


@pytest.mark.arm
def test_lenet_on_an_emulated_a72(lenet, arm_linker, emulated_board):
    g, args, theirs = lenet
    bundle = deploy(g, args, target="cortex-a72")
    assert_within_1e_5(bundle.run(args[1], board=emulated_board), theirs)


@pytest.mark.slow
def test_large_images_of_moments_are_copied_one_by_one():
    """Means and squares of an image are one copy with two results."""
    f, params = jaxeff.functional(nnx.Conv(32, 16, (3, 3), rngs=nnx.Rngs(0)))
    posterior = jax.tree.map(lambda p: Gaussian(p, 0.01 * jnp.ones_like(p)), params)
    x = jax.random.normal(jax.random.key(0), (4, 96, 96, 32))
    assert deploy(jaxeff.moments(f, method="diagonal"), (posterior, x)).check().passed


@pytest.mark.slow
def test_attention_is_compiled_from_what_it_stands_for():
    f, params = jaxeff.functional(nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0)))
    posterior = jax.tree.map(lambda p: Gaussian(p, 0.01 * jnp.ones_like(p)), params)
    x = jax.random.normal(jax.random.key(0), (2, 5, 8))
    assert deploy(jaxeff.moments(f, method="diagonal"), (posterior, x)).check().passed
