"""What an export keeps together: names, operands and attributes that operator libraries rely on."""

import re
from collections import Counter

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.compression import Int, quantized
from jaxeff.core import functional
from jaxeff.moment_propagation import Gaussian, moments
from jaxeff.nn import MLP, LeNet5, ResNet18

_COMPOSITE = re.compile(
    r'stablehlo\.composite "(?P<name>[^"]*)"[^{]*\{(?:composite_attributes = \{(?P<given>.*?)\}, )?'
    r"decomposition = .*? : \((?P<operands>.*?)\) ->"
)


def exported(f, *args):
    """`f` lowered for export, having been written out and read back."""
    leaves, structure = jax.tree.flatten(args)

    def flat(*leaves):
        return jax.tree.leaves(f(*structure.unflatten(leaves)))

    made = jax.export.export(jax.jit(flat), platforms=["cpu"])(*leaves)
    return jax.export.deserialize(made.serialize())


def composites(f, *args):
    """Name, attributes and operand shapes of each composite in an export of `f`, in order."""
    found = []
    for match in _COMPOSITE.finditer(str(exported(f, *args).mlir_module())):
        given = dict(re.findall(r"(\w+) = (\[.*?\]|[^,]+)", match["given"] or ""))
        attributes = {k: v.strip('"').removesuffix(" : i64") for k, v in given.items()}
        shapes = re.findall(r"tensor<(?:(\w+)x)?\w+?>", match["operands"])
        found.append((match["name"], attributes, shapes))
    return found


def posterior(params):
    return jax.tree.map(lambda p: Gaussian(p, (0.05 * jnp.abs(p) + 0.01) ** 2), params)


def array(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


def random(*shape, seed=0):
    return Gaussian(array(*shape, seed=seed), jnp.full(shape, 0.1))


# Whole networks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["variance", "raw"])
def test_the_layers_of_an_mlp(form):
    f, params = functional(MLP((6, 5, 4), rngs=nnx.Rngs(0)))
    known = {"weight": "variance", "bias": "variance"}
    assert composites(moments(f, form=form, method="diagonal"), posterior(params), array(3, 6)) == [
        ("jaxeff.pfp_dense", {"input": "deterministic", **known}, ["3x6", "6x5", "6x5", "5", "5"]),
        ("jaxeff.pfp_relu", {}, ["3x5", "3x5"]),
        ("jaxeff.pfp_dense", {"input": form, **known}, ["3x5", "3x5", "5x4", "5x4", "4", "4"]),
    ]


def test_the_layers_of_a_quantized_network():
    """They stand within the layers that quantization made, their biases without."""
    f, params = functional(MLP((6, 5, 4), rngs=nnx.Rngs(0)))
    operators = composites(
        moments(quantized(f, {"*": Int(8)}), method="diagonal"), posterior(params), array(3, 6)
    )
    # What rounding adds to weights' variances is computed by erf, an operation of StableHLO's own.
    operators = [each for each in operators if each[0].startswith("jaxeff.")]
    shapes = {name: shapes for name, _, shapes in operators}
    assert [name.removeprefix("jaxeff.pfp_") for name, *_ in operators] == [
        "dense",
        "relu",
        "dense",
    ]
    assert shapes["jaxeff.pfp_dense"] == ["3x5", "3x5", "5x4", "5x4", "4", "4"]


@pytest.mark.slow
def test_the_layers_of_lenet():
    f, params = functional(LeNet5(size=28, rngs=nnx.Rngs(0)))
    operators = composites(
        moments(f, method="diagonal"), posterior(params), jnp.ones((2, 28, 28, 1))
    )
    assert [name.removeprefix("jaxeff.pfp_") for name, *_ in operators] == [
        "conv2d", "max_pool", "relu", "conv2d", "max_pool", "relu",
        "dense", "relu", "dense", "relu", "dense",
    ]  # fmt: skip
    assert operators[0][1] == {
        "input": "deterministic", "weight": "variance", "bias": "variance", "strides": "[1, 1]",
        "padding": "[2, 2, 2, 2]", "dilation": "[1, 1]", "groups": "1",
    }  # fmt: skip
    window = {"size": "[1, 2, 2, 1]", "strides": "[1, 2, 2, 1]"}
    padding = {"padding": "[0, 0, 0, 0, 0, 0, 0, 0]"}
    assert operators[1][1:] == ({**window, **padding}, ["2x28x28x6", "2x28x28x6"])
    assert operators[3][2] == ["2x14x14x6", "2x14x14x6", "5x5x6x16", "5x5x6x16", "16", "16"]


@pytest.mark.slow
def test_the_layers_of_a_residual_network():
    model = ResNet18(rngs=nnx.Rngs(0))
    model.eval()
    f, params = functional(model)
    operators = composites(
        moments(f, method="diagonal"), posterior(params), jnp.ones((1, 32, 32, 3))
    )
    names = Counter(name.removeprefix("jaxeff.pfp_") for name, *_ in operators)
    assert names == {"conv2d": 20, "dense": 1, "relu": 17, "max_pool": 1}
    convolutions = [a for name, a, _ in operators if name == "jaxeff.pfp_conv2d"]
    assert {a["bias"] for a in convolutions} == {"none"}
    assert [a["strides"] for a in convolutions].count("[2, 2]") == 7


# Forms of a layer --------------------------------------------------------------------------------


def dense(params, x):
    return x @ params["w"] + params["b"]


def strided(params, x):
    return jax.lax.conv_general_dilated(
        x, params["w"], (2, 1), [(1, 0), (2, 3)], rhs_dilation=(1, 2), feature_group_count=2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    ) + params["b"]  # fmt: skip


LAYERS = {
    "everything random": (dense, random(4, 3), random(3), random(2, 4), "variance"),
    "input deterministic": (dense, random(4, 3), random(3), array(2, 4), "deterministic"),
    "weight deterministic": (dense, array(4, 3), random(3), random(2, 4), "variance"),
    "bias deterministic": (dense, random(4, 3), array(3), random(2, 4), "variance"),
    "bias alone deterministic": (dense, random(4, 3), array(3), array(2, 4), "deterministic"),
    "a vector": (dense, random(4, 3), random(3), random(4), "variance"),
    "a batch of sequences": (dense, random(4, 3), random(3), random(2, 5, 4), "variance"),
    "convolution": (strided, random(3, 2, 1, 4), random(4), random(1, 5, 6, 2), "variance"),
    "first convolution": (
        strided,
        random(3, 2, 1, 4),
        array(4),
        array(1, 5, 6, 2),
        "deterministic",
    ),
}


@pytest.mark.parametrize("form", ["variance", "raw"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_is_one_composite_and_its_decomposition_the_rule(name, form):
    f, w, b, x, given = LAYERS[name]
    g = moments(f, form=form, method="diagonal")
    params = {"w": w, "b": b}
    ((operator, attributes, shapes),) = composites(g, params, x)
    assert operator == ("jaxeff.pfp_dense" if f is dense else "jaxeff.pfp_conv2d")
    kinds = {True: "variance", False: "deterministic"}
    assert attributes["input"] == ("raw" if form == "raw" and given == "variance" else given)
    assert attributes["weight"] == kinds[isinstance(w, Gaussian)]
    assert attributes["bias"] == kinds[isinstance(b, Gaussian)]
    leaves = jax.tree.leaves((x, w, b))
    assert shapes == ["x".join(map(str, leaf.shape)) for leaf in leaves]
    called = exported(g, params, x).call(*jax.tree.leaves((params, x)))
    for got, want in zip(called, jax.tree.leaves(jax.jit(g)(params, x)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_the_attributes_of_a_convolution():
    f, w, b, x, _ = LAYERS["convolution"]
    ((_, attributes, _),) = composites(moments(f, method="diagonal"), {"w": w, "b": b}, x)
    geometry = {k: attributes[k] for k in ("strides", "padding", "dilation", "groups")}
    assert geometry == {
        "strides": "[2, 1]", "padding": "[1, 0, 2, 3]", "dilation": "[1, 2]", "groups": "2",
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore::jaxeff.MomentsWarning")  # one kernel at all steps
def test_a_layer_in_a_loop_is_a_composite_of_its_body():
    def f(params, x):
        return jax.lax.scan(lambda h, _: (dense(params, h), None), x, length=3)[0]

    params = {"w": random(4, 4), "b": random(4)}
    (operators,) = composites(moments(f, method="diagonal"), params, array(2, 4))
    assert operators[1] == {"input": "variance", "weight": "variance", "bias": "variance"}


# Pooling and activations -------------------------------------------------------------------------


def check_decomposition(f, x):
    """The one composite of `f`, after its export has been called."""
    g = moments(lambda _, x: f(x), method="diagonal")
    ((operator, attributes, shapes),) = composites(g, {}, x)
    assert shapes == ["x".join(map(str, x.shape))] * 2
    want = jax.tree.leaves(jax.jit(g)({}, x))
    for got, expected in zip(exported(g, {}, x).call(*jax.tree.leaves(x)), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    return operator, attributes


@pytest.mark.parametrize("kind", ["max", "avg"])
def test_pooling_with_its_window(kind):
    pool = {"max": nnx.max_pool, "avg": nnx.avg_pool}[kind]
    found = check_decomposition(lambda x: pool(x, (3, 2), (2, 1), "SAME"), random(1, 5, 4, 2))
    window = {"size": "[1, 3, 2, 1]", "strides": "[1, 2, 1, 1]"}
    padding = {"padding": "[0, 0, 1, 1, 0, 1, 0, 0]"}
    assert found == (f"jaxeff.pfp_{kind}_pool", {**window, **padding})


ACTIVATIONS = {
    "relu": jax.nn.relu,
    "exp": jnp.exp,
    "sin": jnp.sin,
    "cos": jnp.cos,
    "square": jnp.square,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_in_closed_form(name):
    assert check_decomposition(ACTIVATIONS[name], random(3, 4)) == (f"jaxeff.pfp_{name}", {})


def test_constants_of_a_rule_are_no_operands():
    """The nodes of an integral; beside it stands JAX's own error function."""
    (operators, _) = composites(
        moments(lambda _, x: jax.lax.erf(x), method="diagonal"), {}, random(3, 4)
    )
    assert operators == ("jaxeff.pfp_erf", {}, ["3x4", "3x4"])


def test_a_piecewise_polynomial_with_its_coefficients():
    name, attributes = check_decomposition(lambda x: jnp.where(x > 2, 6, 0.5 * x), random(3, 4))
    assert name == "jaxeff.pfp_piecewise"
    numbers = {k: [float(n) for n in v[1:-1].split(", ")] for k, v in attributes.items()}
    assert numbers == {"breaks": [2], "coefficients": [0, 0.5, 0, 6, 0, 0]}


# Everything else ---------------------------------------------------------------------------------

OTHERS = {
    "a batched product": (
        lambda w, x: jnp.einsum("bij,bjk->bik", x, w), random(2, 4, 3), (2, 5, 4)
    ),
    "weights on the left": (lambda w, x: w @ x, random(3, 4), (4, 5)),
    "a transposed convolution": (
        lambda w, x: jax.lax.conv_transpose(x, w, (2, 2), "SAME"), random(3, 3, 1, 2), (1, 4, 4, 1)
    ),
    "a convolution over one axis": (
        lambda w, x: jax.lax.conv_general_dilated(
            x, w, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        ),
        random(3, 1, 2), (1, 6, 1),
    ),
    "another layout": (
        lambda w, x: jax.lax.conv_general_dilated(x, w, (1, 1), "SAME"),
        random(2, 1, 3, 3), (1, 1, 4, 4),
    ),
    "half precision": (
        lambda w, x: x.astype(jnp.bfloat16) @ w,
        jax.tree.map(lambda a: a.astype(jnp.bfloat16), random(4, 3)), (2, 4),
    ),
    "dilated pooling": (
        lambda w, x: jax.lax.reduce_window(
            x + w, -jnp.inf, jax.lax.max, (1, 2), (1, 1), "VALID", window_dilation=(1, 2)
        ),
        random(2, 6), (2, 6),
    ),
    "an average of what isn't padding": (
        lambda w, x: nnx.avg_pool(x + w, (3,), padding="SAME", count_include_pad=False),
        random(2, 6, 1), (2, 6, 1),
    ),
    "a slope for every entry": (
        lambda w, x: jax.nn.leaky_relu(x + w, jnp.linspace(0, 1, 6)), random(2, 6), (2, 6)
    ),
    "a convolution that crops": (
        lambda w, x: jax.lax.conv_general_dilated(
            x, w, (1, 1), [(-1, 0), (0, 0)], dimension_numbers=("NHWC", "HWIO", "NHWC")
        ),
        random(2, 2, 1, 2), (1, 5, 5, 1),
    ),
    "one bias for all": (
        lambda p, x: x @ p["w"] + p["b"], {"w": random(4, 3), "b": random(1)}, (2, 4)
    ),
    "a bias for every entry": (lambda w, x: x @ jnp.ones((4, 3)) + w, random(2, 3), (2, 4)),
    "only the bias random": (lambda w, x: x @ jnp.ones((4, 3)) + w, random(3), (2, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_layer_of_another_form_is_exported_without_a_composite(name):
    f, w, shape = OTHERS[name]
    assert composites(moments(f, method="diagonal"), w, array(*shape)) == []


def test_a_rule_of_the_users_own_is_not_replaced():
    def mine(node, x, w):
        return [Gaussian(x @ w.mean, jnp.ones((2, 3)))]

    g = moments(lambda w, x: x @ w, rules={jax.lax.dot_general_p: mine}, method="diagonal")
    assert composites(g, random(4, 3), array(2, 4)) == []


def test_a_transformed_function_is_exported_without_composites():
    def loss(w, x):
        return moments(lambda w, x: x @ w, method="diagonal")(w, x).var.sum()

    assert composites(jax.grad(loss), random(4, 3), array(2, 4)) == []
    assert composites(jax.vmap(loss, (None, 0)), random(4, 3), array(5, 2, 4)) == []


def test_symbolic_sizes_are_exported_without_composites():
    (batch,) = jax.export.symbolic_shape("b")
    x = jax.ShapeDtypeStruct((batch, 4), jnp.float32)
    assert composites(moments(lambda w, x: x @ w, method="diagonal"), random(4, 3), x) == []


def test_what_is_not_exported_holds_no_call():
    f, params = functional(MLP((6, 5, 4), rngs=nnx.Rngs(0)))
    text = jax.jit(moments(f, method="diagonal")).lower(posterior(params), array(3, 6)).as_text()
    assert "composite" not in text
