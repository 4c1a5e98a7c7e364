"""What the reader makes of a function: kinds, roles, and values that stay what they were."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.core import functional
from jaxeff.nn import LeNet5, ResNet18, TransformerEncoder
from jaxeff.program import evaluate, expression, expression_of, plain_rule, trace


def run(f, *args):
    program = trace(f, *args)
    outputs = evaluate(program, plain_rule, None, jax.tree.leaves(args))
    return jax.tree.unflatten(program.out_tree, outputs)


def kinds(f, *args):
    return {layer.site: layer.kind for layer in trace(f, *args).sites}


X = jax.random.normal(jax.random.key(1), (4, 6))
W = jax.random.normal(jax.random.key(2), (6, 6))
IMAGES = jax.random.normal(jax.random.key(3), (2, 8, 8, 3))


def gru_like(p, x):
    def cell(h, row):
        h = jnp.tanh(row @ p["w"] + h @ p["w"])
        return h, h * 2

    return jax.lax.scan(cell, jnp.zeros(6), x)


def newton(p, x):
    return jax.lax.while_loop(lambda v: v.sum() < 9, lambda v: v + jnp.abs(x @ p["w"]), x)


def branching(p, x):
    return jax.lax.switch(2, [jnp.sin, jnp.cos, lambda v: v @ p["w"]], x)


FUNCTIONS = {
    "silu": lambda p, x: jax.nn.silu(x @ p["w"]),
    "residual": lambda p, x: x + jax.nn.relu(x @ p["w"]),
    "softmax": lambda p, x: jax.nn.softmax(x @ p["w"]) @ p["w"],
    "log_softmax": lambda p, x: jax.nn.log_softmax(x @ p["w"], axis=0),
    "standardize": lambda p, x: jax.nn.standardize(x) * p["w"][0] + p["w"][1],
    "sort": lambda p, x: jnp.sort(x @ p["w"]),
    "argmax": lambda p, x: (jnp.argmax(x @ p["w"], 1), x),
    "scan": gru_like,
    "while": newton,
    "switch": branching,
    "passthrough": lambda p, x: (x, p["w"], 3.0, jnp.zeros(3)),
    "cumsum": lambda p, x: jnp.cumsum(x @ p["w"], 0),
    "remat": jax.checkpoint(lambda p, x: jnp.sin(x @ p["w"]) ** 2),
    "random": lambda p, x: x @ p["w"] + jax.random.normal(jax.random.key(3), x.shape),
    "symmetric": lambda p, x: x @ x.T @ (x @ p["w"]),
    "in-place": lambda p, x: x.at[1].set(x[0] @ p["w"]),
}


@pytest.mark.promotes("rank")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_reading_and_running_changes_nothing(name):
    f = FUNCTIONS[name]
    params = {"w": W}
    # Both compiled: eager JAX compiles some of jax.nn as a whole, and rounds differently.
    expected, output = jax.jit(f)(params, X), jax.jit(functools.partial(run, f))(params, X)
    assert jax.tree.structure(expected) == jax.tree.structure(output)
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(output), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.promotes("rank")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_the_function(name):
    f = FUNCTIONS[name]

    def loss(g):
        def of(w):
            floats = [v for v in jax.tree.leaves(g({"w": w}, X)) if jnp.ndim(v)]
            return sum(jnp.sum(v * v) for v in floats if jnp.issubdtype(v.dtype, jnp.floating))

        return of

    if name == "while":
        tangent = (jnp.ones_like(W),)
        expected = jax.jvp(loss(f), (W,), tangent)[1]
        output = jax.jvp(loss(functools.partial(run, f)), (W,), tangent)[1]
    else:
        expected = jax.grad(loss(f))(W)
        output = jax.grad(loss(functools.partial(run, f)))(W)
    np.testing.assert_allclose(output, expected, rtol=1e-6, atol=1e-6)


def test_relu_keeps_its_gradient_at_zero():
    g = jax.grad(lambda x: run(lambda p, x: jax.nn.relu(x), {}, x).sum())(jnp.zeros(3))
    np.testing.assert_array_equal(g, jnp.zeros(3))


def test_custom_vjp_without_a_site_keeps_its_gradient():
    @jax.custom_vjp
    def step(x):
        return jnp.round(x)

    step.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (7.0 * g,))
    g = jax.grad(lambda x: run(lambda p, x: step(x * p["a"]), {"a": 2.0}, x).sum())(jnp.ones(3))
    np.testing.assert_array_equal(g, jnp.full(3, 14.0))


def test_kinds_of_a_convolutional_net():
    f, params = functional(LeNet5(pool="avg", rngs=nnx.Rngs(0)))
    layer_kinds = kinds(f, params, jnp.ones((1, 28, 28, 1)))
    assert layer_kinds["conv1"] == layer_kinds["fc3"] == "linear"
    assert layer_kinds["avg_pool"] == "pooling"
    assert layer_kinds["relu_3"] == "elementwise"
    assert layer_kinds["reshape"] == "shape"


def test_biases_and_weights_are_told_apart():
    f, params = functional(LeNet5(rngs=nnx.Rngs(0)))
    for layer in trace(f, params, jnp.ones((1, 28, 28, 1))).sites:
        if layer.kind == "linear":
            assert [layer.inputs[i].path for i in layer.weights] == [f"{layer.site}/kernel"]
            assert [layer.inputs[i].path for i in layer.biases] == [f"{layer.site}/bias"]
            assert len(layer.data) == 1


@pytest.mark.slow
def test_batch_norm_and_residuals_of_resnet():
    model = ResNet18(rngs=nnx.Rngs(0))
    model.eval()
    f, params = functional(model)
    layer_kinds = kinds(f, params, jnp.ones((1, 32, 32, 3)))
    assert list(layer_kinds.values()).count("linear") == 21
    norms = [s for s, k in layer_kinds.items() if k == "normalization"]
    assert len(norms) == 20
    assert all("bn" in n for n in norms)
    assert [s for s in layer_kinds if s.startswith("add")] == [
        "add",
        *(f"add_{i}" for i in range(1, 8)),
    ]
    assert layer_kinds["mean"] == "reduction"


@pytest.mark.slow
def test_attention_of_a_transformer():
    f, params = functional(TransformerEncoder(rngs=nnx.Rngs(0)))
    layer_kinds = kinds(f, params, jnp.ones((2, 8, 8)))
    assert layer_kinds["blocks/1/attn/query"] == "linear"
    assert layer_kinds["matmul"] == "matmul"
    assert layer_kinds["softmax"] == layer_kinds["blocks/0/ln1"] == "normalization"
    assert layer_kinds["gelu_exact_1"] == "elementwise"


def test_one_region_for_a_function_of_one_tensor():
    def f(p, x):
        y = x @ p["w"]
        return y * jax.nn.sigmoid(y) + jnp.tanh(y) ** 2

    found = [layer for layer in trace(f, {"w": W}, X).sites if layer.kind == "elementwise"]
    assert len(found) == 1


@pytest.mark.promotes("rank")
def test_parameters_separate_pointwise_layers():
    def f(p, x):
        scaled = jax.nn.relu(x) * p["scale"]["s"]
        return jnp.tanh(jnp.where(scaled > 0, scaled, p["prelu"]["a"] * scaled))

    params = {"scale": {"s": jnp.ones(6)}, "prelu": {"a": jnp.float32(0.1)}}
    layer_kinds = kinds(f, params, X)
    assert list(layer_kinds) == ["input", "relu", "scale", "prelu", "tanh"]


def test_expressions_recognise_functions_by_example():
    (layer,) = (
        s for s in trace(lambda p, x: jax.nn.gelu(x), {"w": W}, X).sites if s.base != "input"
    )
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    assert expression(layer) == expression_of(jax.jit(jax.nn.gelu), scalar)
    assert expression(layer) != expression_of(
        functools.partial(jax.nn.gelu, approximate=False), scalar
    )


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("out_axes", [0, 1, 2])
def test_softmax_is_recognised_under_vmap(axis, out_axes):
    def f(p, x):
        return jax.vmap(functools.partial(jax.nn.softmax, axis=axis), 1, out_axes)(x)

    x = jnp.ones((2, 3, 4, 5))
    assert "softmax" in kinds(f, {"w": W}, x)
    half = lambda p, x: jax.vmap(lambda v: jax.nn.softmax(v, axis=axis) * 0.5 + v, 1)(x)  # noqa: E731
    assert "softmax" in kinds(f, {"w": W}, x)
    assert run(half, {"w": W}, x).shape == half({"w": W}, x).shape
