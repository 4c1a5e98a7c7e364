"""`ptq` is `calibrate`, `integer` and `convert`."""

import jax
import numpy as np
import pytest

from jaxeff.compression import Int, calibrate, integer, ptq
from jaxeff.nn import small_classifier


@pytest.fixture(scope="module")
def net():
    return small_classifier()


@pytest.mark.parametrize("bits", [8, 4])
def test_one_call_is_the_three(net, bits):
    f, params, (x, _) = net
    g, codes, _ = ptq(f, params, x[:64], bits=bits)
    expected = integer(f, calibrate(f, params, [x[:64]], {"*:linear": Int(bits, 8)}).spec)
    np.testing.assert_array_equal(g(codes, x), expected(expected.convert(params, x[:64]), x))
    agree = (g(codes, x).argmax(-1) == f(params, x).argmax(-1)).mean()
    assert agree > (0.97 if bits == 8 else 0.85)
    assert sum(a.nbytes for a in jax.tree.leaves(codes)) < 0.4 * sum(
        a.nbytes for a in jax.tree.leaves(params)
    )


def test_batches_and_a_spec(net):
    f, params, (x, _) = net
    g, codes, _ = ptq(f, params, [x[:32], x[32:64]], spec={"fc1": Int(8)}, method="mse")
    assert {name.partition("/")[0] for name in codes.arrays} == {"fc1"}
    assert g(codes, x).shape == (len(x), 10)
    with pytest.raises(ValueError, match="there are no batches"):
        ptq(f, params, [])


def autoencoder(params, x):
    """Draws its code with a key of its own, as a variational autoencoder's forward pass does."""
    mean = jax.nn.relu(x @ params["encoder"]) @ params["mean"]
    return (mean + 0.1 * jax.random.normal(jax.random.key(0), mean.shape)) @ params["decoder"]


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg"])
def test_a_function_that_makes_a_random_key(implementation):
    def f(params, x):
        with jax.default_prng_impl(implementation):
            return autoencoder(params, x)

    a, b, c, data = jax.random.split(jax.random.key(1), 4)
    params = {
        "encoder": jax.random.normal(a, (8, 16)) / 3,
        "mean": jax.random.normal(b, (16, 3)) / 4,
        "decoder": jax.random.normal(c, (3, 8)),
    }
    x = jax.random.normal(data, (16, 8))
    g, codes, _ = ptq(f, params, x)
    assert {name.partition("/")[0] for name in codes.arrays} == {"encoder", "mean", "decoder"}
    np.testing.assert_allclose(g(codes, x), f(params, x), atol=0.05)


def pair(params, inputs):
    """A function of one argument that holds two arrays, as a model of Keras has it."""
    a, b = inputs.values() if isinstance(inputs, dict) else inputs
    return a @ params["first"]["kernel"] + b @ params["second"]["kernel"]


@pytest.fixture
def pair_of_inputs():
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = (6, 3), (4, 3), (8, 6), (8, 4)
    first, second, a, b = (
        jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)
    )
    return {"first": {"kernel": first}, "second": {"kernel": second}}, a, b


@pytest.mark.parametrize(
    "batches",
    [
        lambda a, b: ([a, b],),
        lambda a, b: [[a[:4], b[:4]], [a[4:], b[4:]]],
        lambda a, b: {"a": a, "b": b},
        lambda a, b: [{"a": a, "b": b}],
    ],
    ids=["a list in a tuple", "a list of lists", "a dict", "a list of dicts"],
)
def test_an_argument_may_be_a_list_or_a_dict(pair_of_inputs, batches):
    params, a, b = pair_of_inputs
    g, codes, spec = ptq(pair, params, batches(a, b))
    assert set(spec) == {"first", "second"}
    expected = pair(params, [a, b])
    error = np.abs(g(codes, {"a": a, "b": b}) - expected).max()
    assert 0 < error < 0.02 * np.abs(expected).max()


def test_a_list_of_two_inputs_is_refused_with_the_way_out(pair_of_inputs):
    params, a, b = pair_of_inputs
    with pytest.raises(ValueError, match="unpack") as error:
        ptq(pair, params, [a, b])
    assert "([a, b],)" in "".join(error.value.__notes__)
