"""Site names last: whatever wraps the model, a layer is called what it was called."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from jax.ad_checkpoint import checkpoint_name

import jaxeff
from jaxeff.core import functional
from jaxeff.nn import MLP, LeNet5
from jaxeff.program import evaluate, plain_rule, trace

LENET_SITES = [
    "input", "conv1", "relu", "max_pool", "conv2", "relu_1", "max_pool_1",
    "fc1", "relu_2", "fc2", "relu_3", "fc3",
]  # fmt: skip


def names(f, *args, **kwargs):
    return [s.site for s in trace(f, *args, **kwargs).sites if s.is_matchable]


@pytest.fixture(scope="module")
def lenet():
    f, params = functional(LeNet5(rngs=nnx.Rngs(0)))
    return f, params, jnp.ones((2, 28, 28, 1))


def over_batch(f):
    return lambda p, x: jax.vmap(lambda row: f(p, row[None])[0])(x)


def interpreted(f):
    def g(params, x):
        program = trace(f, params, x)
        values = jax.tree.leaves((params, x))
        return jax.tree.unflatten(program.out_tree, evaluate(program, plain_rule, None, values))

    return g


@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: f,
        jax.jit,
        jax.checkpoint,
        over_batch,
        interpreted,
        lambda f: interpreted(interpreted(f)),
        lambda f: jax.jit(interpreted(jax.checkpoint(jax.jit(f)))),
        lambda f: over_batch(interpreted(f)),
    ],
    ids=["plain", "jit", "remat", "vmap", "interpreted", "twice", "nested", "vmap-interpreted"],
)
def test_wrapping_keeps_names(lenet, wrap):
    f, params, x = lenet
    assert names(wrap(f), params, x) == LENET_SITES


def test_names_of_the_forward_pass_survive_grad(lenet):
    f, params, x = lenet

    def loss(p, x):
        return f(p, x).sum()

    site_names = names(jax.value_and_grad(loss), params, x)
    assert [n for n in site_names if n in LENET_SITES] == LENET_SITES
    assert (
        site_names
        == names(jax.jit(jax.value_and_grad(interpreted(loss))), params, x)[: len(site_names)]
    )


class Reuse(linen.Module):
    """Every case in which Linen's own name stack is empty, repeated or wrong."""

    @linen.compact
    def __call__(self, x):
        shared = linen.Dense(4, name="shared")
        x = shared(linen.relu(shared(x)))
        jitted = linen.jit(linen.Dense)
        x = jitted(4, name="b")(linen.relu(jitted(4, name="a")(x)))
        x = linen.remat(linen.Dense)(4, name="r")(x)
        return linen.Dense(3)(linen.softmax(x))


def test_linen_reuse_jit_and_remat():
    module = Reuse()
    x = jnp.ones((2, 4))
    f, params = functional(module, module.init(jax.random.key(0), x))
    expected = ["input", "shared", "relu", "shared#1", "a", "relu_1", "b", "r", "softmax"]
    assert names(f, params, x) == [*expected, "Dense_0"]


class Stack(linen.Module):
    @linen.compact
    def __call__(self, x):
        scan = linen.scan(
            lambda m, c, _: (linen.relu(m(c)), None),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=3,
        )
        return scan(linen.Dense(4, name="layer"), x, None)[0]


def test_linen_scan_names_its_body():
    module = Stack()
    x = jnp.ones((2, 4))
    f, params = functional(module, module.init(jax.random.key(0), x))
    assert names(f, params, x) == ["input", "layer", "relu"]


def test_nnx_and_linen_agree():
    class Net(linen.Module):
        @linen.compact
        def __call__(self, x):
            for i in (1, 2):
                x = linen.relu(linen.Dense(5, name=f"fc{i}")(x))
            return linen.Dense(3, name="fc3")(x)

    x = jnp.ones((2, 4))
    module = Net()
    f_linen, p_linen = functional(module, module.init(jax.random.key(0), x))
    f_nnx, p_nnx = functional(MLP((4, 5, 5, 3), rngs=nnx.Rngs(0)))
    assert names(f_linen, p_linen, x) == names(f_nnx, p_nnx, x)


def test_control_flow_and_nested_lists():
    def f(p, x):
        x = jax.lax.cond(x.sum() > 0, lambda v: jax.nn.relu(v @ p["a"]), lambda v: v @ p["b"], x)
        x = jax.lax.fori_loop(0, 3, lambda _, v: jax.nn.silu(v @ p["layers"][1]["w"]), x)
        limit = lambda v: v.sum() < 10.0  # noqa: E731
        return jax.lax.while_loop(limit, lambda v: v @ p["c"] + 1.0, x)

    w = jnp.eye(4)
    params = {"a": w, "b": w, "c": w, "layers": [{}, {"w": w}]}
    x = jnp.ones((2, 4))
    site_names = names(f, params, x)
    assert {"a", "b", "c", "layers/1", "relu", "silu"} <= set(site_names)
    assert site_names == names(interpreted(f), params, x)


def test_tags_name_layers_without_weights():
    def f(p, x):
        return checkpoint_name(jnp.sin(x @ p["w"]), "wave") + 1.0

    assert names(f, {"w": jnp.eye(3)}, jnp.ones((2, 3))) == ["input", "w", "wave", "add"]


def test_a_tagged_loop_is_read_and_counted_as_without_the_tag():
    def f(p, x):
        y = jax.lax.scan(lambda c, _: (jnp.tanh(c @ p["w"]), None), x, length=2)[0]
        return checkpoint_name(y, "last") if tagged else y

    params, x = {"w": jnp.eye(3)}, jnp.ones((2, 3))
    tagged = False
    alone = jaxeff.cost(f, params, x)
    tagged = True
    assert jaxeff.cost(f, params, x).macs == alone.macs == 36
    assert names(f, params, x) == ["input", "w", "tanh"]


W, B = jnp.eye(4) + 0.1, jnp.ones(4)
ROWS = jnp.ones((2, 4))
LOW = {"a": jnp.ones((4, 2)), "b": jnp.ones((2, 4))}


def feed_forward(p, x):
    p = p["block"]
    return jnp.tanh(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def adapted(p, x):
    return x @ p["fc"]["w"] + x @ p["fc"]["lora"]["a"] @ p["fc"]["lora"]["b"]


def tied(p, x):
    return jnp.tanh(x @ p["m"]["w"] + p["m"]["c"]) @ p["m"]["w"].T @ p["m"]["v"]


def gates(p, x):
    p = p["cell"]
    z, h = x @ jnp.concatenate([p["wi"], p["wf"]], 1), x @ jnp.concatenate([p["ui"], p["uf"]], 1)
    return z + h


def scaled(p, x):
    gated = (x @ p["fc"]["w"]) * p["norm"]["scale"] * jax.nn.sigmoid(x)
    return gated + p["norm"]["bias"]


MODULES = {
    "feed forward": (
        feed_forward, {"block": {"w1": W, "b1": B, "w2": W, "b2": B}},
        ["input", "block/w1", "tanh", "block/w2"],
    ),
    "LoRA": (
        adapted, {"fc": {"w": W, "lora": LOW}},
        ["input", "fc", "fc/lora/a", "fc/lora/b", "add"],
    ),
    "LoRA in one module": (
        lambda p, x: adapted({"fc": {"w": p["fc"]["w"], "lora": p["fc"]}}, x),
        {"fc": {"w": W} | LOW},
        ["input", "fc/w", "fc/a", "fc/b", "add"],
    ),
    "tied": (
        tied, {"m": {"w": W, "c": B, "v": W}},
        ["input", "m/w", "tanh", "m/w#1", "m/v"],
    ),
    "a list": (
        lambda p, x: jnp.tanh(x @ p["layers"][0]) @ p["layers"][1], {"layers": [W, W]},
        ["input", "layers/0", "tanh", "layers/1"],
    ),
    "gates": (
        gates, {"cell": {n: W for n in ("wi", "wf", "ui", "uf")}},
        ["input", "cell/wi", "cell/ui", "add"],
    ),
    "a weight and a bias apart": (
        lambda p, x: 2 * (x @ p["fc"]["kernel"]) + p["fc"]["bias"],
        {"fc": {"kernel": W, "bias": B}},
        ["input", "fc", "mul", "fc/bias"],
    ),
    "a scale and a bias apart": (
        scaled, {"fc": {"w": W}, "norm": {"scale": B, "bias": B}},
        ["fc", "norm", "norm/bias"],
    ),
    "pointwise weights": (
        lambda p, x: ((x * p["m"]["s"]).sum(-1, keepdims=True) * p["m"]["t"]),
        {"m": {"s": B, "t": B}},
        ["input", "m/s", "sum", "m/t"],
    ),
    "at the top": (
        lambda p, x: jnp.tanh(x @ p["w1"]) @ p["w2"], {"w1": W, "w2": W},
        ["input", "w1", "tanh", "w2"],
    ),
}  # fmt: skip


@pytest.mark.promotes("rank")  # biases are vectors
@pytest.mark.parametrize("name", MODULES)
def test_two_weights_of_a_module_are_two_sites(name):
    f, params, expected = MODULES[name]
    site_names = names(f, params, ROWS)
    assert [n for n in site_names if n in expected] == expected
    assert not any("#" in n for n in site_names if n not in expected)
    for wrap in (
        jax.jit,
        jax.checkpoint,
        over_batch,
        interpreted,
        lambda f: interpreted(jax.jit(f)),
    ):
        again = names(wrap(f), params, ROWS)
        assert [n for n in again if n in expected] == expected
    forward = names(jax.value_and_grad(lambda p, x: f(p, x).sum()), params, ROWS)
    assert [n for n in forward if n in expected] == expected


@pytest.mark.promotes("rank")  # biases are vectors
def test_two_weights_of_a_module_in_a_loop():
    params = {"block": {"w1": W, "b1": B, "w2": W, "b2": B}}
    loop = lambda p, x: jax.lax.fori_loop(0, 3, lambda _, x: feed_forward(p, x), x)  # noqa: E731
    assert names(loop, params, ROWS) == ["input", "block/w1", "tanh", "block/w2"]
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), params)
    scan = lambda p, x: jax.lax.scan(lambda x, q: (feed_forward(q, x), None), x, p)[0]  # noqa: E731
    assert names(scan, stacked, ROWS) == ["input", "block/w1", "tanh", "block/w2"]
    assert names(scan, stacked, ROWS) == names(interpreted(scan), stacked, ROWS)


@pytest.mark.parametrize("cell", [linen.LSTMCell, linen.OptimizedLSTMCell, linen.GRUCell])
def test_gates_of_a_recurrent_cell_are_sites_of_their_own(cell):
    module = cell(4)
    carry = module.initialize_carry(jax.random.key(0), (2, 4))
    f, params = functional(module, module.init(jax.random.key(0), carry, ROWS))
    found = [s for s in trace(f, params, carry, ROWS).sites if s.kind == "linear"]
    used = {path for s in found for v in s.inputs for path in v.leaves}
    assert used == {f"{gate}/{leaf}" for gate, leaves in params.items() for leaf in leaves}
    assert all("#" not in s.site for s in found)


def test_closed_over_constants_are_operands():
    basis = jax.random.normal(jax.random.key(0), (4, 4))

    def f(p, x):
        return jax.nn.softmax(2.0 * (x @ basis @ p["w"]))

    site_names = names(f, {"w": jnp.eye(4)}, jnp.ones((2, 4)))
    assert site_names == ["input", "linear", "w", "mul", "softmax"]


def test_mutable_state_and_dropout_are_no_sites():
    f, params, state = functional(MLP((6, 5, 3), batch_norm=True, rngs=nnx.Rngs(0)), mutable=True)
    x = jnp.ones((2, 6))
    assert names(f, params, state, x) == ["input", "fc1", "bn1", "relu", "fc2"]
    net = nnx.Sequential(
        nnx.Linear(4, 4, rngs=nnx.Rngs(0)),
        nnx.Dropout(0.5, rngs=nnx.Rngs(1)),
        nnx.Linear(4, 2, rngs=nnx.Rngs(2)),
    )
    f, params, state = functional(net, mutable=True)
    site_names = names(f, params, state, jnp.ones((2, 4)))
    assert [n for n in site_names if n.startswith("layers")] == ["layers/0", "layers/2"]


def test_key_arguments_come_first_or_anywhere():
    def f(key, p, x):
        return x @ p["w"] + jax.random.normal(key, x.shape)

    x = jnp.ones((2, 3))
    assert "w" in names(f, jax.random.key(0), {"w": jnp.eye(3)}, x)
    last = functools.partial(lambda p, x, key: f(key, p, x))
    assert "w" in names(last, {"w": jnp.eye(3)}, x, jax.random.key(0))


class NNXBlock(nnx.Module):
    """A layer, a normalization by groups, an activation and dropout, as it is written in Flax."""

    def __init__(self, activation, affine, rngs):
        self.fc = nnx.Linear(8, 8, rngs=rngs)
        options = {"use_scale": affine, "use_bias": affine}
        self.norm = nnx.GroupNorm(8, num_groups=2, rngs=rngs, **options)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(8, 3, rngs=rngs)
        self.activation = activation

    def __call__(self, x):
        return self.head(self.drop(self.activation(self.norm(self.fc(x)))))


class LinenBlock(linen.Module):
    activation: Callable
    affine: bool

    @linen.compact
    def __call__(self, x):
        x = linen.Dense(8, name="fc")(x)
        x = linen.GroupNorm(2, use_scale=self.affine, use_bias=self.affine, name="norm")(x)
        x = linen.Dropout(0.5, deterministic=False, name="drop")(self.activation(x))
        return linen.Dense(3, name="head")(x)


IMAGES, VECTORS = jnp.ones((2, 4, 4, 8)), jnp.ones((2, 8))


@pytest.mark.slow
@pytest.mark.promotes("rank")
@pytest.mark.parametrize("affine", [True, False], ids=["affine", "plain"])
@pytest.mark.parametrize("x", [IMAGES, VECTORS], ids=["images", "vectors"])
@pytest.mark.parametrize("name", ["relu6", "relu"])
def test_group_norm_and_dropout_are_one_site_each(name, x, affine):
    activation, key = getattr(jax.nn, name), jax.random.key(0)
    f, params = functional(NNXBlock(activation, affine, nnx.Rngs(0)), keyed=True)[:2]
    norm = "norm" if affine else "group_norm"
    expected = ["input", "fc", norm, name, "dropout", "head"]
    assert names(f, key, params, x) == expected
    kinds = {s.site: s.kind for s in trace(f, key, params, x).sites}
    assert kinds[norm] == "normalization"

    def reread(key, params, x):
        program = trace(f, key, params, x)
        values = jax.tree.leaves((key, params, x))
        return jax.tree.unflatten(program.out_tree, evaluate(program, plain_rule, None, values))

    for again in (reread, jax.jit(reread), jax.checkpoint(f)):
        assert names(again, key, params, x) == expected
    np.testing.assert_array_equal(reread(key, params, x), f(key, params, x))

    block = LinenBlock(activation, affine)
    variables = block.init({"params": key, "dropout": key}, x)
    g, params = functional(block, variables, keyed=True)
    norm = "norm" if affine else "norm/group_norm"
    assert names(g, key, params, x) == ["input", "fc", norm, name, "drop/dropout", "head"]


def test_a_reshape_for_an_average_alone_stays_a_site():
    def f(p, x):
        return x.reshape(2, 2, 2).mean(-1) @ p["w"]

    assert "reshape" in [s.site for s in trace(f, {"w": jnp.eye(2)}, ROWS).sites]


def test_a_function_with_derivatives_of_its_own_has_its_name():
    @jax.custom_vjp
    def stepped(x):
        return jnp.sign(x) + 0.0 * x

    stepped.defvjp(lambda x: (stepped(x), None), lambda _, g: (g,))
    assert names(lambda p, x: stepped(x @ p["w"]) @ p["v"], {"w": W, "v": W}, ROWS) == [
        "input", "w", "stepped", "v",
    ]  # fmt: skip
