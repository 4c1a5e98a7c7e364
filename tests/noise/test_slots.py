"""The source's slot counts, in inference and in training, with and without batch norm."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxeff.core import functional
from jaxeff.nn import MLP, VGG11, LeNet5, ResNet18
from jaxeff.noise import Additive, noisy, slots

IMAGE = jax.ShapeDtypeStruct((2, 28, 28, 1), jnp.float32)
COLOUR = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)


def mlp(**choices):
    return MLP((784, 64, 64, 64, 10), **choices)


def lenet5(**choices):
    return LeNet5(padding="VALID", **choices)


def slots_of(make, batch_norm, x, train=False):
    module = nnx.eval_shape(lambda: make(batch_norm=batch_norm, rngs=nnx.Rngs(0)))
    module.train() if train else module.eval()
    f, params, state = functional(module, mutable=True)
    return slots(f, params, state, x)


@pytest.mark.parametrize(
    ("make", "batch_norm", "x", "count"),
    [
        (mlp, False, IMAGE, 8),
        (mlp, True, IMAGE, 11),
        (lenet5, False, IMAGE, 12),
        (lenet5, True, IMAGE, 16),
        (VGG11, False, COLOUR, 27),
        (ResNet18, False, COLOUR, 33),
        (ResNet18, True, COLOUR, 33),
    ],
)
def test_slots_are_the_sources(make, batch_norm, x, count):
    slot_names = slots_of(make, batch_norm, x)
    assert len(slot_names) == len(set(slot_names)) == count


@pytest.mark.slow
def test_training_has_the_slots_of_inference():
    assert slots_of(mlp, True, IMAGE, train=True) == slots_of(mlp, True, IMAGE)
    assert slots_of(ResNet18, True, COLOUR, train=True) == slots_of(ResNet18, True, COLOUR)


def test_a_residual_network_has_the_slots_of_folded_hardware():
    slot_names = slots_of(ResNet18, True, COLOUR)
    assert slot_names[:7] == [
        "input", "conv1", "relu", "max_pool", "stage1/0/conv1", "stage1/0/conv2", "relu_2",
    ]  # fmt: skip
    assert [s for s in slot_names if "shortcut" in s] == [f"stage{i}/0/shortcut" for i in (2, 3, 4)]
    assert sum("conv" in s or "shortcut" in s for s in slot_names) == 20
    assert sum("relu" in s for s in slot_names) == 9
    assert slot_names[-2:] == ["mean", "fc"]


def test_layers_of_a_loop_have_slots():
    def f(params, x):
        step = lambda h, w: (jax.nn.relu(h @ w), None)  # noqa: E731
        return jax.lax.scan(step, x, params["cell"])[0] @ params["fc"]

    params = {"cell": jnp.ones((4, 3, 3)), "fc": jnp.ones((3, 2))}
    slot_names = slots(f, params, jnp.ones((5, 3)))
    assert slot_names == ["input", "cell", "relu", "fc"]
    g = noisy(f, {site: Additive(0.1) for site in slot_names})
    assert g(jax.random.key(0), params, jnp.ones((5, 3))).shape == (5, 2)
