"""Weights in other libraries' names and layouts are found, and nothing is guessed."""

import re

import jax
import numpy as np
import onnx
import onnxruntime
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxeff
from jaxeff.nn import MLP, LeNet5, ResNet8, TransformerEncoder
from jaxeff.weights import WeightsError, channels_last_inputs, rotary_halves

SPATIAL = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1)}


def leaves(tree):
    found = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(p, simple=True, separator="/"): np.asarray(leaf) for p, leaf in found
    }


def numbered(tree):
    """Every element another number, so that no two arrays can be taken for each other."""
    start, out = 0, []
    for leaf in jax.tree.leaves(tree):
        out.append(np.arange(start, start + leaf.size, dtype=np.float32).reshape(leaf.shape))
        start += leaf.size
    return jax.tree.unflatten(jax.tree.structure(tree), out)


def as_torch(params):
    """The tensors as PyTorch lays them out and names them."""
    names = {"kernel": "weight", "scale": "weight", "embedding": "weight"}
    made = {}
    for name, array in leaves(params).items():
        *module, leaf = name.split("/")
        if "attn" in module:
            width = array.shape[0] if leaf == "kernel" and module[-1] != "out" else array.shape[-1]
            flat = (width, -1) if module[-1] != "out" else (-1, width)
            array = array.reshape(flat) if leaf == "kernel" else array.reshape(-1)
        if leaf == "kernel":
            array = array.transpose(SPATIAL[array.ndim])
        made[".".join([*module, names.get(leaf, leaf)])] = array
    return made


def renamed(tensors, **words):
    for old, new in words.items():
        tensors = {re.sub(old, new, name): array for name, array in tensors.items()}
    return tensors


def zeros(tree):
    return jax.tree.map(np.zeros_like, tree)


def assert_loaded(params, tensors, **options):
    loaded, pairs = jaxeff.load_weights(zeros(params), tensors, **options)
    assert jax.tree.structure(loaded) == jax.tree.structure(params)
    for name, array in leaves(params).items():
        np.testing.assert_array_equal(leaves(loaded)[name], array, err_msg=name)
    return pairs


def model_params(model):
    return numbered(jaxeff.functional(nnx.eval_shape(model))[1])


@pytest.fixture(scope="module")
def encoder():
    return model_params(lambda: TransformerEncoder(rngs=nnx.Rngs(0)))


def test_resnet_with_statistics():
    model = nnx.eval_shape(lambda: ResNet8(rngs=nnx.Rngs(0)))
    _, params, state = jaxeff.functional(model, mutable=True)
    state = {k: v for k, v in state.items() if jax.tree.leaves(v)}
    both = numbered({"params": params, "state": state})
    tensors = as_torch(both["params"])
    statistics = {"mean": "running_mean", "var": "running_var"}
    for name, array in leaves(both["state"]).items():
        *module, leaf = name.split("/")
        tensors[".".join([*module, statistics[leaf]])] = array
        tensors[".".join([*module, "num_batches_tracked"])] = np.array(7)
    assert_loaded(both, renamed(tensors, stage="layer", shortcut="downsample"))
    with pytest.raises(WeightsError, match=r"Batch statistics are state"):
        jaxeff.load_weights(params, tensors)


def test_sequential_numbers_skip_activations():
    params = model_params(lambda: MLP((3, 4, 4, 2), rngs=nnx.Rngs(0)))
    tensors = renamed(as_torch(params), fc1="net.0", fc2="net.2", fc3="net.4")
    pairs = assert_loaded(params, tensors)
    assert ("fc2/kernel", "net.2.weight", "4x4", "reversed") in pairs.rows
    assert "net.4.bias" in str(pairs)


def test_encoder(encoder):
    words = {"blocks": "encoder.layers", "attn": "self_attn", "query": "q_proj", "key": "k_proj"}
    assert_loaded(encoder, renamed(as_torch(encoder), **words, value="v_proj", out="out_proj"))


@pytest.mark.parametrize("fused", ["in_proj_{}", "qkv.{}"])
def test_fused_attention(encoder, fused):
    tensors = as_torch(encoder)
    for i in range(2):
        for leaf in ("weight", "bias"):
            parts = [tensors.pop(f"blocks.{i}.attn.{n}.{leaf}") for n in ("query", "key", "value")]
            tensors[f"blocks.{i}.attn.{fused.format(leaf)}"] = np.concatenate(parts)
    pairs = assert_loaded(encoder, tensors)
    tensor = f"blocks.1.attn.{fused.format('weight')}"
    assert ("blocks/1/attn/key/kernel", tensor, "32x4x8", "reversed, a third") in pairs.rows


def test_square_matrices_follow_the_others():
    w, v = np.arange(4.0).reshape(2, 2), np.arange(6.0).reshape(2, 3)
    params = {"a": {"kernel": np.zeros((2, 2))}, "b": {"kernel": np.zeros((2, 3))}}
    for turn in (np.asarray, np.transpose):
        loaded, _ = jaxeff.load_weights(params, {"a.weight": turn(w), "b.weight": turn(v)})
        np.testing.assert_array_equal(loaded["a"]["kernel"], w)
    only = {"a": params["a"]}
    np.testing.assert_array_equal(
        jaxeff.load_weights(only, {"a.weight": w}).params["a"]["kernel"], w.T
    )
    with pytest.raises(WeightsError, match=r"as it is and transposed"):
        jaxeff.load_weights({"a": {"weight": np.zeros((2, 2))}}, {"a.weight": w})


def test_contradicting_layouts_are_refused():
    params = {
        k: {"kernel": np.zeros(s)} for k, s in {"a": (2, 2), "b": (2, 3), "c": (3, 5)}.items()
    }
    tensors = {
        "a.weight": np.ones((2, 2)),
        "b.weight": np.ones((2, 3)),
        "c.weight": np.ones((5, 3)),
    }
    with pytest.raises(WeightsError, match=r"'a.weight' fits 'a/kernel' .*numpy.transpose"):
        jaxeff.load_weights(params, tensors)
    rules = {"a/kernel": ("a.weight", np.transpose)}
    assert jaxeff.load_weights(params, tensors, rules).pairs.rows[0][3] == "transpose"


def test_flattened_images_are_refused_without_a_rule():
    params = model_params(lambda: LeNet5(rngs=nnx.Rngs(0)))
    tensors = as_torch(params)
    # What PyTorch's model reads: channels first.
    image = leaves(params)["fc1/kernel"].reshape(25, 16, 120)
    tensors["fc1.weight"] = image.transpose(2, 1, 0).reshape(120, 400)
    with pytest.raises(WeightsError, match=r"channels_last_inputs\(16\)"):
        jaxeff.load_weights(params, tensors)
    assert_loaded(params, tensors, rules={"fc1/kernel": ("fc1.weight", channels_last_inputs(16))})


@pytest.mark.parametrize(
    ("shapes", "refused"),
    [
        # An image of 4 channels and 2 x 2 pixels, of 32 and 4 x 4; nothing else makes 16 or 512.
        ({"conv": (3, 3, 1, 4), "fc": (16, 16), "head": (16, 10)}, ["fc"]),
        ({"conv": (3, 3, 1, 32), "fc": (512, 512), "norm": (512,), "head": (512, 10)}, ["fc"]),
        # Either of two square layers may be the first.
        ({"conv": (3, 3, 1, 32), "a": (512, 512), "b": (512, 512)}, ["a", "b"]),
        # All that makes 16 channels is read by a convolution.
        ({"conv": (3, 3, 1, 16), "last": (3, 3, 16, 4), "fc": (16, 16)}, ["fc"]),
        # 5 * 5 * 12 = 300 is no width of the convolution.
        ({"conv": (5, 5, 12, 6), "fc": (300, 8)}, ["fc"]),
        ({"conv": (3, 1, 4), "fc": (16, 16)}, ["fc"]),
        # In order: a mean over pixels, a layer of 16 features before it.
        ({"conv": (3, 3, 1, 8), "last": (3, 3, 8, 16), "fc": (16, 16), "head": (16, 10)}, []),
        ({"conv": (3, 3, 1, 4), "mid": (64, 16), "fc": (16, 16)}, ["mid"]),
        ({"conv": (3, 3, 1, 4), "fc": (7, 16), "head": (16, 10)}, []),
    ],
)
def test_square_layers_behind_images_are_refused(shapes, refused):
    params = numbered(
        {n: {"scale" if len(s) == 1 else "kernel": np.zeros(s)} for n, s in shapes.items()}
    )
    turn = {1: (0,), 2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1)}
    tensors = {f"{n}.weight": a.transpose(turn[a.ndim]) for n in shapes for a in params[n].values()}
    rules = {}
    for name in refused:
        with pytest.raises(WeightsError, match=rf"'{name}.weight' for .*channels first"):
            jaxeff.load_weights(zeros(params), tensors, rules)
        rules[f"{name}/kernel"] = (f"{name}.weight", np.transpose)
        if name == "a":  # the first of them makes what the second reads
            break
    assert_loaded(params, tensors, rules=rules)


def test_tied_heads():
    table = np.arange(12.0).reshape(4, 3)
    params = {"embed": {"embedding": np.zeros((4, 3))}, "lm_head": {"kernel": np.zeros((3, 4))}}
    loaded, pairs = jaxeff.load_weights(params, {"model.embed_tokens.weight": table})
    np.testing.assert_array_equal(loaded["lm_head"]["kernel"], table.T)
    assert pairs.rows[1][3] == "reversed, tied"
    both = {"model.embed_tokens.weight": table, "lm_head.weight": table.copy()}
    one = {"embed": params["embed"]}
    assert len(jaxeff.load_weights(one, both).pairs.rows) == 1
    with pytest.raises(WeightsError, match=r"belong to no parameter.*lm_head"):
        jaxeff.load_weights(one, both | {"lm_head.weight": table + 1})


def test_rules_keep_and_ignore():
    params = {f"layers/{i}": {"kernel": np.zeros((2, 3))} for i in range(2)}
    params["head"] = {"kernel": np.full((3, 2), 7.0)}
    tensors = {f"x.{i}.u": np.full((3, 2), 1.0 + i) for i in range(3)}
    rules = {"layers/*/kernel": "x.*.u"}
    loaded, _ = jaxeff.load_weights(params, tensors, rules, keep=["head/*"], ignore=["x.2.*"])
    assert [float(leaf.max()) for leaf in jax.tree.leaves(loaded)] == [7.0, 1.0, 2.0]
    again, _ = jaxeff.load_weights(params, tensors, rules, keep=["head/*"], ignore=["*"])
    jax.tree.map(np.testing.assert_array_equal, again, loaded)  # what a rule names isn't ignored
    for options, message in (
        ({"rules": {"nothing": "x.0.u"}}, "matches no parameter"),
        ({"rules": {"head/kernel": "y"}}, "asks for 'y'"),
        ({"rules": {"head/*": "x.0.u", "head/kernel": "x.0.u"}}, "two rules"),
        ({"rules": {"head/kernel": ("x.0.u", np.ravel)}}, r"makes \[6\]"),
        ({"rules": {"head/kernel": ("x.0.u", lambda a: a / "2")}}, "fails at 'x.0.u'"),
        ({"keep": ["nothing"]}, "keep: 'nothing' matches none"),
        ({"rules": {"head/kernel": "x.0.u"}, "keep": ["head/*"]}, "is kept"),
    ):
        with pytest.raises(WeightsError, match=message):
            jaxeff.load_weights(params, tensors, **options)


def test_what_is_ambiguous_is_refused_with_candidates():
    params = {"mlp": {n: {"kernel": np.zeros((2, 3))} for n in ("first", "second")}}
    tensors = {f"ffn.{n}.weight": np.ones((3, 2)) for n in ("alpha", "omega")}
    with pytest.raises(WeightsError, match=r"mlp/first/kernel \[2, 3\]: ffn.alpha.weight \[3, 2\]"):
        jaxeff.load_weights(params, tensors)


def test_other_models_are_refused():
    params = model_params(lambda: MLP((3, 4, 2), rngs=nnx.Rngs(0)))
    tensors = as_torch(params)
    with pytest.raises(WeightsError, match=r"fc9.weight \[4, 4\]"):
        jaxeff.load_weights(params, tensors | {"fc9.weight": np.ones((4, 4))})
    with pytest.raises(WeightsError, match=r"fc2/bias .*none of its shape"):
        jaxeff.load_weights(params, {n: a for n, a in tensors.items() if n != "fc2.bias"})
    bad = tensors | {"fc1.bias": np.array([0, 1, np.nan, 2])}
    with pytest.raises(WeightsError, match=r"'fc1.bias' has values that aren't finite"):
        jaxeff.load_weights(params, bad)
    with pytest.raises(WeightsError, match=r"codes of a quantized model"):
        jaxeff.load_weights(params, tensors | {"fc1.bias": np.ones(4, np.int8)})


def transposed_by_onnx(x, kernel, bias):
    """PyTorch's transposed convolution of stride 2, whose kernel ONNX has as it is."""
    helper, real = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], strides=[2] * (x.ndim - 2))
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", real, x.shape)],
        [helper.make_tensor_value_info("y", real, None)],
        [onnx.numpy_helper.from_array(a, n) for a, n in ((kernel, "w"), (bias, "b"))],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model, onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]


@pytest.mark.parametrize("name", ["up", "conv"])
@pytest.mark.parametrize("transpose_kernel", [False, True])
@pytest.mark.parametrize(("channels", "axes"), [((3, 5), 2), ((4, 4), 2), ((5, 3), 1), ((2, 2), 3)])
def test_transposed_convolutions(tmp_path, name, transpose_kernel, channels, axes):
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(*channels, *[3] * axes)).astype(np.float32)
    bias = rng.normal(size=channels[1]).astype(np.float32)
    x = rng.normal(size=(1, channels[0], *[4] * axes)).astype(np.float32)
    model, expected = transposed_by_onnx(x, kernel, bias)

    class Net(nnx.Module):
        def __init__(self, rngs):
            layer = nnx.ConvTranspose(
                *channels, [3] * axes, strides=[2] * axes, padding="VALID",
                transpose_kernel=transpose_kernel, rngs=rngs,
            )  # fmt: skip
            setattr(self, name, layer)

        def __call__(self, x):
            return getattr(self, name)(x)

    f, params = jaxeff.functional(Net(nnx.Rngs(0)))
    tensors = {f"{name}.weight": kernel, f"{name}.bias": bias}
    stated = () if transpose_kernel else (f"{name}/kernel",)
    options = {"mirrored": stated}
    if channels[0] != channels[1]:
        options = {}
    elif name != "conv":  # which a convolution's would be called
        with pytest.raises(WeightsError, match=r"as many channels in as out.*mirrored=\("):
            jaxeff.load_weights(params, tensors)
    loaded, _ = jaxeff.load_weights(params, tensors, **options)
    found = np.moveaxis(f(loaded, np.moveaxis(x, 1, -1)), -1, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    # A graph says that it is a transposed convolution, whatever it is called.
    onnx.save(model, tmp_path / "model.onnx")
    rules = {f"{name}/kernel": "w", f"{name}/bias": "b"}
    if options:
        with pytest.raises(WeightsError, match=r"as many channels in as out"):
            jaxeff.load_weights(params, tmp_path / "model.onnx", rules)
    loaded, _ = jaxeff.load_weights(params, tmp_path / "model.onnx", rules, **options)
    assert (np.moveaxis(f(loaded, np.moveaxis(x, 1, -1)), -1, 1) == found).all()


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("conv1", True), ("stage.2.conv", True), ("Conv2d_0", True), ("conv2d", True),
        ("features.3", False), ("t_conv1", False), ("tconv", False), ("decoder.conv1", False),
        ("convT", False), ("conv_up", False), ("body", False),
    ],
)  # fmt: skip
def test_a_square_kernel_is_a_convolution_where_its_name_says_so(name, taken):
    kernel = np.arange(36.0).reshape(2, 2, 3, 3)
    params = {"layer": {"kernel": np.zeros((3, 3, 2, 2))}}
    tensors, rules = {f"{name}.weight": kernel}, {"layer/kernel": f"{name}.weight"}
    if not taken:
        with pytest.raises(WeightsError, match=r"as many channels in as out"):
            jaxeff.load_weights(params, tensors, rules)
    options = {} if taken else {"mirrored": ()}
    loaded, _ = jaxeff.load_weights(params, tensors, rules, **options)
    np.testing.assert_array_equal(loaded["layer"]["kernel"], kernel.transpose(2, 3, 1, 0))
    with pytest.raises(WeightsError, match="mirrored: 'nothing' matches none"):
        jaxeff.load_weights(params, tensors, mirrored=["nothing"])


def test_rotary_halves():
    rows = np.arange(16.0).reshape(8, 2)
    halves = rows.reshape(2, 2, 2, 2)  # heads, halves, pairs, inputs
    written = halves.swapaxes(1, 2).reshape(8, 2)
    np.testing.assert_array_equal(rotary_halves(2)(written), rows.T)


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_any_order_and_dtype(data):
    depth, width = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 3))
    params = numbered(
        {
            "embed": {"embedding": np.zeros((5, width))},
            "blocks": {
                str(i): {
                    "norm": {"scale": np.zeros(width)},
                    "up": {"kernel": np.zeros((width, 4)), "bias": np.zeros(4)},
                    "down": {"kernel": np.zeros((4, width))},
                }
                for i in range(depth)
            },
        }
    )
    start = data.draw(st.integers(0, 3))
    tensors = {}
    for name, array in as_torch(params).items():
        shifted = re.sub(r"blocks\.(\d+)", lambda m: f"model.h.{int(m[1]) + start}", name)
        tensors[shifted] = array.astype(data.draw(st.sampled_from([np.float32, np.float64])))
    order = data.draw(st.permutations(sorted(tensors)))
    assert_loaded(params, {name: tensors[name] for name in order})
