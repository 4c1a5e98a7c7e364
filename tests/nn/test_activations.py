import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from jaxeff.nn import ACTIVATIONS, activation
from jaxeff.nn.layers import prelu

X = np.concatenate([np.linspace(-4, 4, 33), [-0.5, 0.5, -3.0, 3.0, 0.0]])
ROWS = np.random.default_rng(0).normal(size=(3, 7))


def sigmoid(x):
    return special.expit(x)


def elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


FORMS = {  # PyTorch's definitions with its default parameters, in NumPy
    "Cosine": np.cos,
    "Sine": np.sin,
    "Softshrink": lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
    "Hardtanh": lambda x: np.clip(x, -1, 1),
    "PReLU": lambda x: np.maximum(x, 0) + 0.25 * np.minimum(x, 0),
    "Tanh": np.tanh,
    "Hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "Hardsigmoid": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "LeakyReLU": lambda x: np.maximum(x, 0) + 0.01 * np.minimum(x, 0),
    "Mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "SELU": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * elu(x)),
    "GELU": lambda x: x * special.ndtr(x),
    "LogSigmoid": lambda x: np.log(sigmoid(x)),
    "LeakyReLU0.5": lambda x: np.maximum(x, 0) + 0.5 * np.minimum(x, 0),
    "ReLU": lambda x: np.maximum(x, 0),
    "Sigmoid": sigmoid,
    "Softplus": lambda x: np.log1p(np.exp(x)),
    "ELU": elu,
    "CELU": elu,
    "SiLU": lambda x: x * sigmoid(x),
    "RReLU": lambda x: np.maximum(x, 0) + (1 / 8 + 1 / 3) / 2 * np.minimum(x, 0),
    "LogSoftmax": lambda x: special.log_softmax(x, -1),
    "Tanhshrink": lambda x: x - np.tanh(x),
    "Softmin": lambda x: special.softmax(-x, -1),
    "Softmax": lambda x: special.softmax(x, -1),
    "Hardshrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
}


def test_there_are_the_27_of_the_source():
    assert list(ACTIVATIONS) == list(FORMS)
    assert len(ACTIVATIONS) == 27


@pytest.mark.slow
def test_each_is_pytorchs_function():
    for name, form in FORMS.items():
        x = ROWS if "oft" in name and name[-3:] in ("max", "min") else X
        got = activation(name)(jnp.asarray(x))
        np.testing.assert_allclose(got, form(x), rtol=2e-5, atol=2e-6, err_msg=name)


def test_each_has_finite_gradients_everywhere():
    def slopes(x):
        return {name: jax.grad(lambda x, f=f: f(x).sum())(x) for name, f in ACTIVATIONS.items()}

    for name, slope in jax.jit(slopes)(jnp.asarray([-200.0, -3, -0.5, 0, 0.5, 3, 200])).items():
        assert np.isfinite(slope).all(), name


def test_the_slope_of_prelu_can_be_learned():
    gradient = jax.grad(lambda slope: prelu(jnp.array([-2.0, 3.0]), slope).sum())(0.1)
    assert float(gradient) == -2


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match=r"'relu'; there are Cosine, .*Hardshrink"):
        activation("relu")
