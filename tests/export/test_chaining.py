"""Integer kernels that follow each other become one, and compute what they computed apart."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tvm
from flax import nnx
from jaxeff_export import deploy, export, resolve_target
from jaxeff_export.compiler import bind_parameters, compilation, fused_kernels
from jaxeff_export.compiler.passes import CHAINS, chained
from jaxeff_export.importer import import_stablehlo
from jaxeff_export.operators import operators_for
from tvm import relax
from tvm.target import Target

import jaxeff
from jaxeff.compression import ptq
from jaxeff.compression.integers._operators import q_codes, q_dense

HOST = {**resolve_target("host"), "num-cores": 1}
KEY = jax.random.key(0)


def layer(x, w, result="codes", **more):
    """A dense layer of codes."""
    bias, scale = jnp.arange(w.shape[1], dtype=jnp.int32), jnp.full(w.shape[1], 0.01, jnp.float32)
    at = {"zero": 3, "lower": 3, "upper": 255, "shortcut": "none", "shortcut_zero": 0, **more}
    return q_dense(x, w, bias, scale, result=result, weight_bits=8, activation_bits=8, **at)


def network(params, x):
    """Codes that two layers read, one of them twice over; a view; floats in between."""
    codes = q_codes(x, per_step=20.0, zero=9, lower=0, upper=255)
    first = layer(codes, params["a"])
    second = layer(first, params["a"])  # the same kernel twice
    flat = second.reshape(1, -1)
    last = layer(flat, params["b"], result="float")
    apart = jnp.tanh(last) * 2.0
    again = layer(q_codes(apart, per_step=9.0, zero=9, lower=0, upper=255), params["c"])
    return first, last, again


@pytest.fixture(scope="module")
def given():
    shapes = {"a": (24, 24), "b": (72, 20), "c": (20, 5)}
    keys = jax.random.split(KEY, 3)
    params = {
        name: jax.random.randint(key, shape, -127, 128).astype(jnp.int8)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }
    return params, jax.random.normal(KEY, (3, 24))


def kernels_of(module):
    """Of each kernel that `main` calls, whether it can be one of a chain."""
    calls = [
        module[b.value.args[0]]
        for block in module["main"].body.blocks
        for b in block.bindings
        if isinstance(b.value, tvm.ir.Call) and b.value.op == tvm.ir.Op.get("relax.call_tir")
    ]
    return [CHAINS in (kernel.attrs or {}) for kernel in calls]


@pytest.mark.slow
def test_kernels_between_others_are_one(given):
    artifact = export(network, given)
    module = import_stablehlo(artifact.stablehlo, composites=operators_for(HOST))
    main = fused_kernels(bind_parameters(module, 3, HOST).main, Target(HOST))
    apart = relax.transform.RewriteDataflowReshape()(main)
    assert sum(kernels_of(apart)) == 6
    assert sum(kernels_of(chained(apart))) == 2  # before the hyperbolic tangent, and after it


@pytest.mark.slow
def test_a_view_of_what_comes_before_a_chain_stays_before_it():
    def f(params, x):
        before = jnp.tanh(x)
        first = q_codes(x, per_step=20.0, zero=9, lower=0, upper=255)
        flat = q_codes(before.reshape(-1), per_step=20.0, zero=9, lower=0, upper=255)
        return layer(first, params["a"]), flat

    keys = jax.random.split(KEY, 2)
    params = {"a": jax.random.randint(keys[0], (24, 24), -127, 128).astype(jnp.int8)}
    x = jax.random.normal(keys[1], (3, 24))
    bundle = deploy(f, (params, x), target=HOST)
    for output, expected in zip(bundle.run(x), jax.jit(f)(params, x), strict=True):
        np.testing.assert_array_equal(output, expected)


@pytest.mark.slow
def test_results_are_the_same_bits(given, tmp_path):
    bundle = deploy(network, given, target=HOST, path=tmp_path / "b")
    expected = jax.jit(network)(*given)
    for i in (0, 1):
        np.testing.assert_array_equal(bundle.run(given[1])[i], expected[i])
    named = {row.name for row in bundle.profile(number=1, repeat=1)}
    assert len([name for name in named if name.startswith("q_")]) >= 4  # each by itself


@pytest.mark.slow
def test_a_function_of_many_calls_is_interpreted(monkeypatch, tmp_path):
    """Its bundle keeps state, is checked and profiled as that of machine code is."""

    def step(params, x, held):
        for w in params:
            x = jax.nn.softmax(x @ w)
        return x + held, held + 1

    keys = jax.random.split(KEY, 3)
    args = [jax.random.normal(k, (4, 4)) for k in keys], jnp.ones((1, 4)), jnp.zeros((1, 4))
    results, libraries = {}, []
    for most in (compilation.MOST_CALLS, 3):
        monkeypatch.setattr(compilation, "MOST_CALLS", most)
        bundle = deploy(step, args, HOST, state=("held",))
        assert bundle.check()
        session = bundle.session()
        results[most] = [session.step(args[1]) for _ in range(3)]
        assert bundle.profile(number=1, repeat=1)
        # A C library has no interpreter: it calls the kernels itself, whatever the bundle does.
        bundle.export_c(tmp_path / str(most), name="net")
        libraries.append((tmp_path / str(most) / "net.c").read_text())
    assert libraries[0] == libraries[1]
    one, other = results.values()
    np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(one[2] - one[0], 2, rtol=1e-5)


@pytest.mark.slow
def test_pixels_of_few_features_keep_the_shortcuts_beside_them():
    """Whole vectors that spill into the next pixel met its shortcut, whose memory results take."""

    class Net(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Conv(1, 6, (3, 3), rngs=rngs)
            self.block = nnx.Conv(6, 6, (3, 3), rngs=rngs)
            self.last = nnx.Conv(6, 16, (1, 1), strides=2, rngs=rngs)

        def __call__(self, x):
            x = nnx.relu(self.first(x))
            return self.last(nnx.relu(x + self.block(x)))

    x = jax.random.normal(KEY, (1, 14, 14, 1))
    function, params = jaxeff.functional(Net(nnx.Rngs(0)))
    integers, converted, _ = ptq(function, params, x)
    bundle = deploy(integers, (converted, x), target=HOST)
    np.testing.assert_array_equal(bundle.run(x), jax.jit(integers)(converted, x))
