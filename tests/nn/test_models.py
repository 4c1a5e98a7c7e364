"""The reference models: parameter counts, shapes, names, and one layer-by-layer oracle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxeff.core import functional
from jaxeff.nn import (
    MLP,
    VGG11,
    LeNet5,
    LinenLeNet5,
    LinenMLP,
    ResNet18,
    TransformerEncoder,
    WideResNet,
)


def abstract(build):
    """The model as a pure function of shapes: nothing is computed or allocated."""
    return functional(nnx.eval_shape(build), mutable=True)


def count(params):
    return sum(leaf.size for leaf in jax.tree.leaves(params))


# Counts from the source work (LeNet-5 on CIFAR-10; VGG-11 and ResNet-18 with 1000 outputs), the
# others added up by hand from the layer sizes.
CASES = {
    "mlp": (lambda: MLP((784, 100, 100, 10), rngs=nnx.Rngs(0)), (28, 28, 1), 10, 89_610),
    "mlp-bn": (
        lambda: MLP((784, 64, 64, 64, 10), batch_norm=True, rngs=nnx.Rngs(0)),
        (28, 28, 1),
        10,
        50_240 + 2 * 4_160 + 650 + 3 * 128,
    ),
    "lenet-mnist": (lambda: LeNet5(rngs=nnx.Rngs(0)), (28, 28, 1), 10, 61_706),
    "lenet-mnist-valid": (
        lambda: LeNet5(padding="VALID", rngs=nnx.Rngs(0)),
        (28, 28, 1),
        10,
        61_706 - (400 - 256) * 120,
    ),
    "lenet-cifar": (
        lambda: LeNet5(10, 3, size=32, padding="VALID", rngs=nnx.Rngs(0)),
        (32, 32, 3),
        10,
        62_006,
    ),
    "lenet-bn": (
        lambda: LeNet5(batch_norm=True, pool="avg", rngs=nnx.Rngs(0)),
        (28, 28, 1),
        10,
        61_706 + 2 * (6 + 16 + 120 + 84),
    ),
    "vgg11": (lambda: VGG11(1000, rngs=nnx.Rngs(0)), (32, 32, 3), 1000, 132_863_336),
    "vgg11-10": (lambda: VGG11(10, rngs=nnx.Rngs(0)), (32, 32, 3), 10, 128_807_306),
    "vgg11-224": (lambda: VGG11(10, rngs=nnx.Rngs(0)), (224, 224, 3), 10, 128_807_306),
    "vgg11-bn-compact": (
        lambda: VGG11(10, batch_norm=True, head=1, rngs=nnx.Rngs(0)),
        (32, 32, 3),
        10,
        128_807_306 - 48 * 512 * 4096 + 2 * (64 + 128 + 512 + 2048),
    ),
    "resnet18": (lambda: ResNet18(1000, rngs=nnx.Rngs(0)), (32, 32, 3), 1000, 11_689_512),
    "resnet18-10": (lambda: ResNet18(rngs=nnx.Rngs(0)), (32, 32, 3), 10, 11_181_642),
    "resnet18-cifar": (
        lambda: ResNet18(stem="cifar", rngs=nnx.Rngs(0)),
        (32, 32, 3),
        10,
        11_173_962,
    ),
    "resnet18-narrow": (
        # An eighth of the channels: kernels shrink by 64, what has one axis of channels by 8.
        lambda: ResNet18(10, 1, stem="cifar", widths=(8, 16, 32, 64), rngs=nnx.Rngs(0)),
        (14, 14, 1),
        10,
        (11_173_962 - 9 * 3 * 64 - 9600 - 5130) // 64 + 9 * 8 + 9600 // 8 + 64 * 10 + 10,
    ),
    "resnet18-plain": (
        # Every scale and shift pair becomes one bias.
        lambda: ResNet18(batch_norm=False, rngs=nnx.Rngs(0)),
        (32, 32, 3),
        10,
        11_181_642 - (5 * 64 + 5 * 128 + 5 * 256 + 5 * 512),
    ),
    # As counted of the authors' network for CIFAR-10 (arXiv 1605.07146, "36.5M").
    "wrn-28-10": (lambda: WideResNet(rngs=nnx.Rngs(0)), (32, 32, 3), 10, 36_479_194),
    "wrn-10-1": (
        # Every input of a convolution has its batch norm; no convolution has a bias.
        lambda: WideResNet(10, 1, depth=10, factor=1, rngs=nnx.Rngs(0)),
        (8, 8, 1),
        10,
        9 * 16 * (1 + 16 + 16 + 32)
        + 9 * 32 * (32 + 64)
        + 9 * 64 * 64
        + 16 * 32
        + 32 * 64
        + 2 * (3 * 16 + 2 * 32 + 2 * 64)
        + 65 * 10,
    ),
    "transformer": (
        lambda: TransformerEncoder(rngs=nnx.Rngs(0)),
        (8, 8, 1),
        10,
        (9 * 32) + 8 * 32 + 2 * (4 * 33 * 32 + 33 * 64 + 65 * 32 + 4 * 32) + 2 * 32 + 33 * 10,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_parameter_counts_and_output_shapes(name):
    build, image, classes, parameters = CASES[name]
    f, params, state = abstract(build)
    assert count(params) == parameters
    x = jax.ShapeDtypeStruct((3, *image), jnp.float32)
    y, new_state = jax.eval_shape(f, params, state, x)
    assert y.shape == (3, classes)
    assert y.dtype == jnp.float32
    assert jax.tree.structure(new_state) == jax.tree.structure(state)


def test_a_wide_residual_network_has_whole_blocks():
    with pytest.raises(ValueError, match="6 n"):
        WideResNet(depth=18, rngs=nnx.Rngs(0))


def test_layers_have_the_documented_paths():
    _, params, state = abstract(CASES["resnet18"][0])
    assert set(params) == {"conv1", "bn1", "stage1", "stage2", "stage3", "stage4", "fc"}
    assert set(params["stage2"]["0"]) == {"conv1", "bn1", "conv2", "bn2", "shortcut", "bn_shortcut"}
    assert set(params["stage2"]["1"]) == {"conv1", "bn1", "conv2", "bn2"}
    assert set(state["stage2"]["1"]) == {"bn1", "bn2"}
    _, params, state = abstract(CASES["wrn-10-1"][0])
    assert set(params) == {"conv1", "stage1", "stage2", "stage3", "bn", "fc"}
    assert set(params["stage1"]["0"]) == {"bn1", "conv1", "bn2", "conv2"}
    assert set(params["stage2"]["0"]) == {"bn1", "conv1", "bn2", "conv2", "shortcut"}
    _, params, state = abstract(CASES["vgg11"][0])
    assert set(params) == {*(f"conv{i}" for i in range(1, 9)), "fc1", "fc2", "fc3"}
    _, params, state = abstract(CASES["transformer"][0])
    assert set(params["blocks"]["1"]["attn"]) == {"query", "key", "value", "out"}
    assert not jax.tree.leaves(state)
    _, params, state = abstract(CASES["lenet-bn"][0])
    assert set(params) == {"conv1", "conv2", "fc1", "fc2", "fc3", "bn1", "bn2", "bn3", "bn4"}
    assert set(state) == {"bn1", "bn2", "bn3", "bn4"}


def convolve(x, kernel, bias, pad):
    """A valid cross-correlation written as loops over the window."""
    x = np.pad(np.asarray(x, np.float64), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    k = kernel.shape[0]
    h, w = x.shape[1] - k + 1, x.shape[2] - k + 1
    y = sum(
        x[:, i : i + h, j : j + w] @ np.asarray(kernel[i, j], np.float64)
        for i in range(k)
        for j in range(k)
    )
    return y + np.asarray(bias)


@pytest.mark.slow
@pytest.mark.parametrize(("padding", "pool"), [("SAME", "max"), ("VALID", "avg")])
def test_lenet5_equals_its_layers_in_numpy(padding, pool):
    model = LeNet5(padding=padding, pool=pool, rngs=nnx.Rngs(0))
    f, p = functional(model)
    x = jax.random.normal(jax.random.key(1), (2, 28, 28, 1))
    reduce = np.max if pool == "max" else np.mean
    y = np.asarray(x)
    for name, pad in (("conv1", 2 if padding == "SAME" else 0), ("conv2", 0)):
        y = np.maximum(convolve(y, p[name]["kernel"], p[name]["bias"], pad), 0)
        b, h, w, c = y.shape
        y = reduce(y.reshape(b, h // 2, 2, w // 2, 2, c), axis=(2, 4))
    y = y.reshape(2, -1)
    for name in ("fc1", "fc2", "fc3"):
        y = y @ np.asarray(p[name]["kernel"], np.float64) + np.asarray(p[name]["bias"])
        y = np.maximum(y, 0) if name != "fc3" else y
    np.testing.assert_allclose(f(p, x), y, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_linen_twins_compute_the_same_from_the_same_parameters():
    x = jax.random.normal(jax.random.key(1), (2, 28, 28, 1))
    pairs = [
        (MLP((784, 20, 10), rngs=nnx.Rngs(0)), LinenMLP((784, 20, 10))),
        (LeNet5(rngs=nnx.Rngs(0)), LinenLeNet5()),
    ]
    for model, twin in pairs:
        f, params = functional(model)
        g, twin_params = functional(twin, twin.init(jax.random.key(0), x))
        assert jax.tree.structure(params) == jax.tree.structure(twin_params)
        np.testing.assert_allclose(g(params, x), f(params, x), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_one_image_alone_equals_its_row_of_the_batch():
    f, params = functional(LeNet5(rngs=nnx.Rngs(0)))
    x = jax.random.normal(jax.random.key(1), (2, 28, 28, 1))
    np.testing.assert_allclose(f(params, x[0]), f(params, x)[0], rtol=1e-5, atol=1e-6)


def test_vgg_head_repeats_a_single_cell():
    from jaxeff.nn.models._vgg11 import _resize_pool

    x = jax.random.normal(jax.random.key(0), (2, 1, 1, 3))
    np.testing.assert_array_equal(_resize_pool(x, 7), np.broadcast_to(x, (2, 7, 7, 3)))
    x = jax.random.normal(jax.random.key(0), (2, 4, 4, 3))
    want = np.asarray(x).reshape(2, 2, 2, 2, 2, 3).mean(axis=(2, 4))
    np.testing.assert_allclose(_resize_pool(x, 2), want, rtol=1e-6)
    with pytest.raises(ValueError, match="3×3 feature map to 7×7"):
        _resize_pool(jnp.ones((1, 3, 3, 2)), 7)


@pytest.mark.slow
@pytest.mark.promotes("rank")
def test_batch_norm_learns_statistics_in_train_mode_only():
    model = MLP((4, 8, 2), batch_norm=True, rngs=nnx.Rngs(0))
    x = 3 + jax.random.normal(jax.random.key(1), (64, 4))
    f, params, state = functional(model, mutable=True)
    _, new = f(params, state, x)
    hidden = x @ params["fc1"]["kernel"] + params["fc1"]["bias"]
    np.testing.assert_allclose(new["bn1"]["mean"], 0.1 * hidden.mean(0), rtol=1e-4, atol=1e-5)
    model.eval()
    f, params, state = functional(model, mutable=True)
    _, new = f(params, state, x)
    np.testing.assert_array_equal(new["bn1"]["mean"], state["bn1"]["mean"])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda r: LeNet5(padding="FULL", rngs=r), "padding 'SAME' or 'VALID'"),
        (lambda r: LeNet5(size=8, rngs=r), "can't take 8×8 images"),
        (lambda r: LeNet5(pool="min", rngs=r), "not 'min'"),
        (lambda r: ResNet18(stem="tiny", rngs=r), "not 'tiny'"),
        (lambda r: MLP((3,), rngs=r), "needs the input's and the output's width"),
        (lambda r: TransformerEncoder(width=30, heads=4, rngs=r), "30 can't be split"),
    ],
)
def test_impossible_models_are_clear_errors(build, message):
    with pytest.raises(ValueError, match=message):
        build(nnx.Rngs(0))
