"""Models of Keras go through `functional`, the transforms, and back."""

import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxeff
from jaxeff.compression import calibrate, ptq, round_weights
from jaxeff.pruning import Prune

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras")
layers = keras.layers
pytestmark = pytest.mark.promotes("dtype", "rank")  # Keras does


def residual(x, channels):
    y = layers.Conv2D(channels, 3, padding="same")(x)
    y = layers.ReLU()(layers.BatchNormalization()(y))
    y = layers.BatchNormalization()(layers.Conv2D(channels, 3, padding="same")(y))
    return layers.ReLU()(layers.Add()([x, y]))


@pytest.fixture
def net():
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 3))
    y = residual(layers.Conv2D(8, 3, padding="same", name="stem")(x), 8)
    y = layers.Dropout(0.5)(layers.GlobalAveragePooling2D()(y))
    return keras.Model(x, layers.Dense(5, name="fc")(y))


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(4, 8, 8, 3)).astype("float32")


def computed(model, x):
    return np.asarray(model(x, training=False))


def test_a_model_infers_under_its_layers_names(net, x):
    f, params = jaxeff.functional(net)
    np.testing.assert_allclose(jax.jit(f)(params, x), computed(net, x), atol=1e-6)
    names = set(jaxeff.sites(f, params, x))
    assert {"stem", "conv2d", "batch_normalization_1", "fc"} < names


def test_training_follows_the_batch_and_a_key_draws(net, x):
    f, params, state = jaxeff.functional(net, mutable=True, keyed=True)
    assert not any("seed" in path for path in map(str, jax.tree_util.tree_flatten_with_path(state)))
    first, after = f(jax.random.key(0), params, state, x)
    again, _ = f(jax.random.key(0), params, state, x)
    other, _ = f(jax.random.key(1), params, state, x)
    np.testing.assert_array_equal(first, again)
    assert jnp.abs(first - other).max() > 1e-3
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), state, after)
    assert min(jax.tree.leaves(moved)) > 0


def test_integers_are_within_steps_of_the_model(net, x):
    f, params = jaxeff.functional(net)
    spec = calibrate(f, params, [x], {"*:linear": jaxeff.Int(8)}).spec
    g = jaxeff.integer(f, spec)
    codes = g.convert(params, x)
    error = np.abs(g(codes, x) - f(params, x)).max()
    assert 0 < error < 0.05 * np.abs(f(params, x)).max()


def test_parameters_go_back(net, x):
    f, params = jaxeff.functional(net)
    moved = jax.tree.map(lambda w: 0.9 * w, params)
    restored = jaxeff.restore(net, moved)
    np.testing.assert_allclose(computed(restored, x), f(moved, x), atol=1e-6)
    np.testing.assert_allclose(computed(net, x), f(params, x), atol=1e-6)


def test_a_pruned_model_goes_back(net, x):
    f, params = jaxeff.functional(net)
    plan = jaxeff.prune_plan(f, params, x, {"*:linear": Prune(0.5)})
    small = plan.shrink(params)
    state = plan.shrink(jaxeff.functional(net, mutable=True)[2])
    restored = jaxeff.restore(net, small, state)
    assert restored.count_params() < 0.5 * net.count_params()
    np.testing.assert_allclose(
        computed(restored, x), jaxeff.pruned(f, plan)(small, x), atol=1e-6
    )  # fmt: skip


def test_a_model_without_weights_is_built_by_examples():
    model = keras.Sequential([layers.Dense(4), layers.Dense(3)])
    with pytest.raises(ValueError, match="give example inputs"):
        jaxeff.functional(model)
    f, params = jaxeff.functional(model, jnp.ones((2, 5)))
    assert f(params, jnp.ones((7, 5))).shape == (7, 3)


def test_a_plan_says_how_many_groups_are_left(x):
    inputs = keras.Input(x.shape[1:])
    y = layers.Conv2D(8, 3, activation="relu")(inputs)
    y = layers.Conv2D(16, 3, groups=4, activation="relu")(y)
    model = keras.Model(inputs, layers.Conv2D(4, 1)(y))
    f, params = jaxeff.functional(model)
    plan = jaxeff.prune_plan(f, params, x, {"*:linear": Prune(0.5)})
    small = plan.shrink(params)
    restored = jaxeff.restore(model, small, plan=plan)
    assert restored.layers[2].groups == 2
    expected = jaxeff.pruned(f, plan)(small, x)
    np.testing.assert_allclose(restored(x), expected, atol=1e-5)


def test_adapted_statistics_go_back():
    data = np.random.default_rng(0).normal(2.0, 3.0, (20, 4)).astype("float32")
    statistics = layers.Normalization()
    statistics.adapt(data)
    model = keras.Sequential([keras.Input((4,)), statistics, layers.Dense(3)])
    f, params = jaxeff.functional(model)
    restored = jaxeff.restore(model, params)
    np.testing.assert_allclose(f(params, data), model(data), atol=1e-6)
    np.testing.assert_allclose(restored(data), model(data), atol=1e-6)


def test_a_call_without_training_is_called_without():
    class Plain(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    model, x = Plain(), np.ones((2, 4), "float32")
    f, params = jaxeff.functional(model, x)
    np.testing.assert_allclose(f(params, x), model(x), atol=1e-6)


def test_states_that_keras_hides_are_refused():
    inputs = keras.Input(batch_shape=(2, 5, 3))
    model = keras.Model(inputs, layers.LSTM(4, stateful=True, name="memory")(inputs))
    with pytest.raises(ValueError, match="memory is stateful"):
        jaxeff.functional(model)


@pytest.mark.parametrize("kind", [list, dict])
def test_a_model_of_several_inputs_is_quantized(kind):
    keras.utils.set_random_seed(0)
    inputs = {name: keras.Input((width,), name=name) for name, width in (("a", 6), ("b", 4))}
    y = layers.Add()([layers.Dense(3, name=f"of_{name}")(x) for name, x in inputs.items()])
    model = keras.Model(inputs if kind is dict else list(inputs.values()), y)
    random = np.random.default_rng(0)
    data = {
        name: random.normal(size=(8, x.shape[1])).astype("float32") for name, x in inputs.items()
    }
    data = data if kind is dict else list(data.values())
    f, params = jaxeff.functional(model)
    expected = np.asarray(model(data))
    for batches in ((data,), [data]):
        g, codes, spec = ptq(f, params, batches)
        assert set(spec) == {"of_a", "of_b"}
        assert 0 < np.abs(g(codes, data) - expected).max() < 0.02 * np.abs(expected).max()
    with pytest.raises(TypeError, match=r"as data it is in a tuple, \(\[a, b\],\)"):
        ptq(f, params, tuple(jax.tree.leaves(data)))


def test_rounded_weights_compute_in_keras_what_training_saw(net, x):
    f, params = jaxeff.functional(net)
    two = {"*:linear": jaxeff.Int(2, activations=False)}
    rounded = round_weights(f, params, x[:1], two).params
    expected = jaxeff.quantized(f, two)(params, x)
    np.testing.assert_allclose(computed(jaxeff.restore(net, rounded), x), expected, atol=1e-6)
    assert np.abs(computed(jaxeff.restore(net, params), x) - expected).max() > 1e-2


@pytest.mark.filterwarnings("ignore:__array__ impl:DeprecationWarning")  # Keras's own
@pytest.mark.parametrize("inside", [False, True])
def test_models_that_keras_quantized_are_refused_by_name(inside):
    layer = layers.Dense(3, name="head")
    model = keras.Sequential([keras.Input((4,)), layer])
    if inside:
        model = keras.Sequential([keras.Input((5, 4)), layers.TimeDistributed(model)])
    jaxeff.functional(model)
    layer.quantize("int8")
    with pytest.raises(TypeError, match=r"head is quantized to int8 by Keras.*compression.ptq"):
        jaxeff.functional(model)


def test_models_of_tensorflow_are_refused_with_the_way_to_a_file_that_is_read(
    tmp_path, monkeypatch
):
    (tmp_path / "saved_model.pb").write_bytes(b"")
    with pytest.raises(TypeError) as error:
        jaxeff.functional(tmp_path)
    assert f"from_saved_model({str(tmp_path)!r}).convert()" in str(error.value)

    class Module:
        """Stands for TensorFlow's."""

    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(Module=Module))
    with pytest.raises(TypeError, match=r"saved_model.save\(model, .*from_saved_model\('folder'\)"):
        jaxeff.functional(Module())


OTHER_BACKEND = """
import jax, jaxeff, keras, numpy as np
from jaxeff.compression import ptq
from keras import layers

keras.config.set_epsilon(1e-3)
keras.utils.set_random_seed(0)
inputs = keras.Input((12, 8))
h = layers.Conv1D(8, 3, padding="same", name="stem")(inputs)
h = layers.Dropout(0.5)(layers.BatchNormalization()(h))
h = layers.MultiHeadAttention(2, 4)(h, h) + h
h = layers.Bidirectional(layers.GRU(5))(h)
h = layers.Dense(7, trainable=False, name="frozen")(h)
h = keras.ops.normalize(keras.ops.relu(h))  # by the epsilon that is set
model = keras.Model(inputs, layers.Dense(3, name="head")(h))
x = np.random.default_rng(0).normal(size=(16, 12, 8)).astype("float32")

def computed(model):
    return keras.ops.convert_to_numpy(model(x, training=False))

expected = computed(model)
f, params = jaxeff.functional(model)
np.testing.assert_allclose(jax.jit(f)(params, x), expected, atol=1e-5)
assert {"stem", "batch_normalization", "head"} < set(jaxeff.sites(f, params, x))
assert "frozen" not in params
g, codes, _ = ptq(f, params, x)
assert np.abs(g(codes, x) - expected).max() < 0.2 * np.abs(expected).max()
halves = jax.tree.map(lambda w: w / 2, params)
restored = jaxeff.restore(model, halves)
np.testing.assert_allclose(computed(restored), f(halves, x), atol=1e-5)
np.testing.assert_array_equal(computed(model), expected)
train, params, state = jaxeff.functional(model, mutable=True, keyed=True)
first, after = train(jax.random.key(0), params, state, x)
again, _ = train(jax.random.key(0), params, state, x)
np.testing.assert_array_equal(first, again)
assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(after)))

class Own(layers.Layer):
    def call(self, x):
        return x

try:
    jaxeff.functional(keras.Sequential([keras.Input((4,)), Own(), layers.Dense(2)]))
except ValueError as error:
    assert "Own is a class of your own" in str(error) and "KERAS_BACKEND=jax" in str(error)
else:
    raise AssertionError
assert keras.backend.backend() == BACKEND and type(layers.Dense(2)) is layers.Dense
"""


@pytest.mark.slow  # a process of its own imports Keras twice
@pytest.mark.parametrize("backend", ["numpy", "torch", "tensorflow"])
def test_models_of_other_backends_are_computed_on_jax(backend):
    if find_spec(backend) is None:
        pytest.skip(f"{backend} isn't installed")
    run = subprocess.run(
        [sys.executable, "-c", OTHER_BACKEND.replace("== BACKEND", f"== {backend!r}")],
        env={**os.environ, "KERAS_BACKEND": backend}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
