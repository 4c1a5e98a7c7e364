"""Arguments of another kind than expected: one clear error that names them and the way out."""

import inspect
from typing import TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import jaxeff
from jaxeff import core
from jaxeff.bayes import (
    NUTS,
    Draws,
    SVIResult,
    distill,
    mcmc,
    predict,
    sample,
    save_posterior,
    svi,
    to_gaussians,
)
from jaxeff.moment_propagation import Gaussian
from jaxeff.training import cross_entropy, fit, stateless

KEY = jax.random.key(0)
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
Y = np.arange(4) % 2
PARAMS = {"w": jnp.ones((3, 2))}
GAUSSIANS = {"w": Gaussian(jnp.ones((3, 2)), jnp.full((3, 2), 0.1))}
DRAWS = Draws({"w": jnp.ones((2, 3, 3, 2))}, PARAMS)
RESULT = SVIResult(GAUSSIANS, [{"epoch": 0, "loss": 1.0}])
MODEL = nnx.Linear(3, 2, rngs=nnx.Rngs(0))


def f(params, x):
    return x @ params["w"]


def train(key=KEY, loss=None, params=PARAMS, data=(X, Y)):
    loss = cross_entropy(f) if loss is None else loss
    return fit(key, loss, params, data, optimizer=optax.sgd(0.1), epochs=1, batch_size=2)


def infer(key=KEY, f=f, params=PARAMS, data=(X, Y)):
    return svi(key, f, params, data, epochs=1, batch_size=2)


def walk(key=KEY, f=f, params=PARAMS, data=(X, Y)):
    return mcmc(key, f, params, data, NUTS(), warmup=1, samples=1, chains=1)


NOISY = jaxeff.noisy(f, {"w": jaxeff.Additive(0.1)})
KEYS = ("None", "0", r"float32\[2\]")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        # keys
        (lambda: train(key=None), r"fit: key must be a random key such as .*, not None"),
        (lambda: train(key=0), r"fit: key must be a random key such as .*, not 0"),
        (lambda: infer(key=jnp.ones(2)), r"svi: key must be a random key .*, not float32\[2\]"),
        (lambda: walk(key=7), r"key must be a random key .*, not 7"),
        (lambda: predict(None, f, GAUSSIANS, X), "predict: key must be a random key .*, not None"),
        (lambda: NOISY(None, PARAMS, X), "a key, must be a random key .*, not None"),
        (lambda: NOISY(PARAMS, X), "a key, must be a random key .*, not a dict"),
        # models for functions
        (lambda: infer(f=MODEL), r"svi: f must be .* Flax model Linear: f, params ="),
        (lambda: walk(f=MODEL), "f must be a pure function .* Flax model Linear"),
        (lambda: cross_entropy(MODEL), "cross_entropy: f must be .* Flax model Linear"),
        (lambda: predict(KEY, MODEL, GAUSSIANS, X), "predict: f must be .* Flax model Linear"),
        (lambda: jaxeff.moments(MODEL), "moments: f must be .* Flax model Linear"),
        (lambda: jaxeff.summary(MODEL, PARAMS, X), "f must be .* Flax model Linear"),
        (lambda: infer(f=PARAMS), "svi: f must be a pure function .*, not a dict"),
        # models and results for parameters
        (lambda: train(params=MODEL), "fit: params must be a pytree of arrays, not the Flax model"),
        (lambda: infer(params=MODEL), "params must be a pytree of arrays, not the Flax model"),
        (lambda: walk(params=MODEL), "params must be a pytree of arrays, not the Flax model"),
        (lambda: infer(params=RESULT), "params is a SVIResult: pass its posterior"),
        (lambda: infer(params={"w": "ones"}), "params .* but w is 'ones'"),
        (lambda: jaxeff.sites(f, MODEL, X), "sites: params must be .* not the Flax model Linear"),
        # data
        (lambda: infer(data=X), r"data must be \(\*inputs, targets\).* not float32\[4,?\s?3\]"),
        (lambda: walk(data={"x": X, "y": Y}), r"data must be .* not a dict"),
        (lambda: train(data={"x": X, "y": Y}), r"must be a pair \(inputs, labels\), not a dict"),
        (lambda: train(data=(X, Y, Y)), r"must be a pair \(inputs, labels\), not a tuple of 3"),
        (lambda: train(loss=stateless(lambda k, p, b: 0.0), data=("x",)), "fit: data .* is 'x'"),
        # posteriors
        (lambda: predict(KEY, f, RESULT, X), "the posterior, a SVIResult, holds no Gaussian"),
        (lambda: predict(KEY, f, None, X), "the posterior, a NoneType, holds no Gaussian"),
        (lambda: sample(KEY, PARAMS, 3), "the posterior, a dict, holds no Gaussian"),
        (lambda: to_gaussians(PARAMS), "the posterior, a dict, holds no Gaussian"),
        (lambda: to_gaussians(MODEL), "the posterior, a Linear, holds no Gaussian"),
        (lambda: save_posterior("never-written", RESULT), "is a SVIResult: pass its posterior"),
        (lambda: save_posterior("never-written", MODEL), "must be .* Flax model Linear"),
        (lambda: jaxeff.moments(f)(DRAWS, X), r"is a posterior \(Draws\).*to_gaussians"),
        (lambda: jaxeff.moments(f)(RESULT, X), "argument 0 is a SVIResult: pass its posterior"),
        (lambda: distill(KEY, f, PARAMS, (X,), None, epochs=1), "teacher must be .* a NoneType"),
        (lambda: distill(KEY, f, PARAMS, X, GAUSSIANS, epochs=1), "inputs must be a tuple"),
    ],
)  # fmt: skip
def test_what_it_is_and_what_it_should_be(call, message):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.slow
def test_old_style_keys_and_arrays_of_keys_pass():
    old = jax.random.key_data(KEY)
    assert NOISY(old, PARAMS, X).shape == (4, 2)
    assert predict(old, f, GAUSSIANS, X, samples=3).shape == (3, 4, 2)
    keys = jax.random.split(KEY, 5)
    assert jax.vmap(NOISY, (0, None, None))(keys, PARAMS, X).shape == (5, 4, 2)
    assert train(key=old).history


class SharedOptions(TypedDict, total=False):
    rate: float
    steps: int


def descend(*, rate: float = 0.5, decay: float = 0.0) -> float:
    return rate - decay


def count_up(*, steps: int = 3, rate: float = 0.1) -> int:
    return steps


@core.validate(rate=core.positive, steps=core.static_integer())
@core.forwards((descend, count_up), SharedOptions)
def shared(**options: Unpack[SharedOptions]) -> tuple[float, int]:
    return (
        descend(**core.options_for(descend, options)),
        count_up(**core.options_for(count_up, options)),
    )


def test_functions_share_options():
    assert shared() == (0.5, 3)
    assert shared(rate=0.2, steps=4) == (0.2, 4)
    defaults = {name: p.default for name, p in inspect.signature(shared).parameters.items()}
    assert defaults == {"rate": 0.5, "steps": 3}  # the first function's where both have one
    with pytest.raises(TypeError, match=r"'step'; did you mean 'steps'"):
        shared(step=4)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'decay'"):
        shared(decay=0.1)  # not one that is passed on
    with pytest.raises(ValueError, match=r"shared: steps must be at least 1"):
        shared(steps=0)
