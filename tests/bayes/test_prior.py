import importlib
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from jaxeff.bayes import NUTS, mcmc, prior_scales, svi
from jaxeff.bayes.posteriors import draw_prior
from jaxeff.bayes.variational import _svi as variational
from jaxeff.core import functional

mcmc_module = importlib.import_module("jaxeff.bayes.sampling._mcmc")

PARAMS = {
    "conv1": {"kernel": jnp.zeros((5, 5, 3, 6)), "bias": jnp.zeros(6)},
    "fc1": {"kernel": jnp.zeros((50, 10)), "bias": jnp.zeros(10)},
}


def test_fan_in():
    assert prior_scales("fan_in", PARAMS) == {
        "conv1/bias": 1.0,
        "conv1/kernel": pytest.approx(np.sqrt(2 / 75)),
        "fc1/bias": 1.0,
        "fc1/kernel": pytest.approx(np.sqrt(2 / 50)),
    }


def test_one_scale_for_all():
    assert set(prior_scales(0.3, PARAMS).values()) == {0.3}


def test_the_most_specific_pattern_decides_and_the_rest_is_fan_in():
    rules = {"conv1/kernel": 0.5, "*/kernel": 2, "fc1/bias": "fan_in"}
    for order in itertools.permutations(rules):
        scales = prior_scales({pattern: rules[pattern] for pattern in order}, PARAMS)
        assert scales == {
            "conv1/bias": 1.0, "conv1/kernel": 0.5, "fc1/bias": 1.0, "fc1/kernel": 2.0
        }  # fmt: skip
    assert prior_scales({"*": 1.0, "fc1/*": 2.0}, PARAMS)["fc1/kernel"] == 2.0


def test_patterns_that_tie_or_decide_nothing_are_errors():
    with pytest.raises(ValueError, match="equally specific at the parameter 'fc1/kernel'"):
        prior_scales({"fc1/*nel": 3.0, "f*kernel": 3.0}, PARAMS)
    with pytest.raises(ValueError, match=r"'fc1/\*' decides no parameter"):
        prior_scales({"fc1/*": 1.0, "fc1/bias": 2.0, "fc1/kernel": None}, PARAMS)


def scales_of(module, *inputs):
    f, params = functional(module, module.init(jax.random.key(0), *inputs))
    return prior_scales("fan_in", params, f, *inputs)


def of_fan_in(n):
    return pytest.approx(np.sqrt(2 / n))


@pytest.mark.slow
def test_an_attention_kernel_is_fed_by_its_inputs_not_by_its_heads():
    x = jnp.ones((1, 3, 64))
    linens = scales_of(linen.MultiHeadDotProductAttention(8, qkv_features=512), x)
    layers = nnx.MultiHeadAttention(8, 64, qkv_features=512, decode=False, rngs=nnx.Rngs(0))
    f, params = functional(layers)
    for scales in (linens, prior_scales("fan_in", params, f, x)):
        for part in ("query", "key", "value"):
            assert scales[f"{part}/kernel"] == of_fan_in(64)
        assert scales["out/kernel"] == of_fan_in(512)
        assert scales["query/bias"] == 1.0
    with pytest.raises(ValueError, match="fan-in of query/kernel can't be told from its shape"):
        prior_scales({"*/bias": 1.0, "key/*nel": 1.0, "value/*nel": 1.0, "out/*nel": 1.0}, params)


class Tied(linen.Module):
    @linen.compact
    def __call__(self, tokens):
        table = linen.Embed(1000, 16, name="embed")
        x = linen.Dense(16, name="fc")(linen.LayerNorm(name="ln")(table(tokens)))
        return table.attend(x) if self.is_tied else x

    is_tied: bool = True


def test_a_table_of_embeddings_does_not_know_its_vocabulary():
    tokens = jnp.zeros((2, 3), int)
    assert scales_of(Tied(is_tied=False), tokens)["embed/embedding"] == 1.0
    assert scales_of(Tied(), tokens)["embed/embedding"] == of_fan_in(16)
    assert prior_scales("fan_in", {"embed": {"embedding": jnp.ones((9, 4))}}) == {
        "embed/embedding": 1.0
    }


class Convolutions(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.Conv(8, (3, 3), name="plain")(x)
        x = linen.Conv(8, (3, 3), feature_group_count=8, name="depthwise")(x)
        x = linen.Conv(16, (3, 3), feature_group_count=4, name="grouped")(x)
        return linen.ConvTranspose(2, (4, 4), strides=(2, 2), name="up")(x)


@pytest.mark.slow
def test_a_convolution_is_fed_by_its_window_and_the_channels_of_its_group():
    scales = scales_of(Convolutions(), jnp.ones((1, 8, 8, 4)))
    assert {path.removesuffix("/kernel"): s for path, s in scales.items() if "kernel" in path} == {
        "plain": of_fan_in(36), "depthwise": of_fan_in(9), "grouped": of_fan_in(18),
        "up": of_fan_in(4 * 16),  # of the 16 taps a quarter meets an input
    }  # fmt: skip


@pytest.mark.slow
def test_the_prior_variance_of_an_output_does_not_depend_on_the_layout():
    """By draws: the mean square of x @ w for unit inputs is 2, whichever way the array lies."""
    x = jnp.ones((1, 400))
    layouts = {
        "in, out": (lambda p, x: x @ p["w"], (400, 50)),
        "out, in": (lambda p, x: x @ p["w"].T, (50, 400)),
        "heads": (lambda p, x: jnp.einsum("bi,ihd->bhd", x, p["w"]), (400, 5, 10)),
        "from heads": (lambda p, x: jnp.einsum("bhd,hdo->bo", x.reshape(1, 8, 50), p["w"]),
                       (8, 50, 50)),
        "scanned": (lambda p, x: jax.lax.scan(lambda c, w: (c, x @ w), 0.0, p["w"])[1],
                    (1, 400, 50)),
    }  # fmt: skip
    for name, (f, shape) in layouts.items():
        params = {"w": jnp.zeros(shape)}
        scales = prior_scales("fan_in", params, f, x)
        draw = lambda key, p=params, s=scales: draw_prior(key, p, s)  # noqa: E731
        drawn = jax.vmap(draw)(jax.random.split(jax.random.key(0), 200))
        squares = np.asarray(jax.vmap(lambda p, f=f: f(p, x))(drawn)).astype(float) ** 2
        error = 2 * np.sqrt(2 / squares.size)  # of a chi-squared mean
        assert abs(squares.mean() - 2) < 4 * error, name


@pytest.mark.slow
@pytest.mark.parametrize("method", ["svi", "nuts"])
def test_inference_takes_the_functions_own_fan_ins(method, monkeypatch):
    f = lambda p, x: jnp.einsum("bi,ihd->bhd", x, p["w"]).sum(1)  # noqa: E731
    params, x = {"w": jnp.full((6, 4, 2), 0.1)}, jnp.ones((8, 6))
    seen = []
    module = {"svi": variational, "nuts": mcmc_module}[method]

    def recorded(*args):
        seen.append(prior_scales(*args))
        return seen[-1]

    monkeypatch.setattr(module, "prior_scales", recorded)
    y = jnp.zeros(8, int)
    if method == "svi":
        svi(jax.random.key(0), f, params, (x, y), epochs=1, batch_size=4, progress=False)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mcmc(jax.random.key(0), f, params, (x, y), NUTS(), chains=1, warmup=2, samples=2,
                 progress=False)  # fmt: skip
    assert seen == [{"w": of_fan_in(6)}]


def test_pattern_without_a_match():
    with pytest.raises(ValueError, match=r"'fc2/\*' matches no parameter. The parameters are: "):
        prior_scales({"fc2/*": 1.0}, PARAMS)


@pytest.mark.parametrize("bad", [0.0, -1, float("nan"), float("inf"), "unit", [1.0]])
def test_bad_scales(bad):
    with pytest.raises(ValueError, match="prior of fc1/kernel must be a positive"):
        prior_scales({"fc1/kernel": bad}, PARAMS)


def test_none_is_not_random():
    assert prior_scales({"fc1/*": None}, PARAMS)["fc1/kernel"] is None
    with pytest.raises(ValueError, match="leaves no parameter random"):
        prior_scales({"*": None}, PARAMS)
