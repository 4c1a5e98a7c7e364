"""The laws of `tests/test_laws.py` for every quantizer there is, all of one in one program."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff import compression
from jaxeff.compression import (
    LSQ,
    PACT,
    BaseQuantizer,
    BayesianBits,
    Binary,
    BinaryBases,
    Codebook,
    Discrete,
    DoReFa,
    Floating,
    HalfWave,
    Incremental,
    LayerQuantization,
    LearnedBasis,
    LearnedPowers,
    LearnedWidth,
    PowersOfTwo,
    Relaxed,
    Scaled,
    Stochastic,
    Switched,
    Ternary,
    TrainedTernary,
    Uniform,
    deterministic,
    init,
    quantized,
)
from jaxeff.noise import Additive
from jaxeff.program import trace

METHODS = {
    "uniform": LayerQuantization(Uniform(3), Uniform(4, per="sample")),
    "lsq": LayerQuantization(LSQ(3), LSQ(4, asymmetric=True)),
    "pact": LayerQuantization(PACT(3), PACT(4)),
    "width": LayerQuantization(LearnedWidth(4), LearnedWidth(5)),
    "learned powers": LayerQuantization(LearnedPowers(3), LearnedPowers(4, zero=True)),
    "dorefa": LayerQuantization(DoReFa(2), DoReFa(3)),
    "dorefa, gradients": LayerQuantization(DoReFa(2), DoReFa(3, gradient_bits=4)),
    "stochastic": LayerQuantization(Stochastic(3), Stochastic(4, per="sample")),
    "floating": LayerQuantization(Floating("e4m3"), Floating("e5m2", scaling="power_of_two")),
    "binary": LayerQuantization(Binary(), Binary(gradient="polynomial")),
    "drawn": LayerQuantization(Binary(stochastic=True)),
    "bases": LayerQuantization(BinaryBases(2), BinaryBases(2)),
    "ternary": LayerQuantization(Ternary(), Ternary()),
    "trained ternary": LayerQuantization(TrainedTernary(), TrainedTernary()),
    "powers": LayerQuantization(PowersOfTwo(3), PowersOfTwo(4)),
    "incremental": LayerQuantization(Incremental(4, 0.5)),
    "half-wave": LayerQuantization(Binary(follow=True), HalfWave(2)),
    "basis": LayerQuantization(LearnedBasis(2, turns=2), LearnedBasis(2, turns=2)),
    "codebook": LayerQuantization(Codebook(2), Codebook(2)),
    "relaxed": LayerQuantization(Relaxed(3), Relaxed(3, draw="hard")),
    "bayesian bits": LayerQuantization(BayesianBits(), BayesianBits()),
    "discrete": LayerQuantization(Discrete()),
    "scaled": LayerQuantization(Scaled(Uniform(3), jnp.array(2.0))),
    "switched": LayerQuantization(
        Switched(Uniform(3), jnp.array(True)), Switched(Uniform(3), jnp.array(False))
    ),
}
X = jax.random.normal(jax.random.key(1), (3, 6, 6, 1))
KEY = jax.random.key(0)


class Net(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(1, 3, (3, 3), strides=2, rngs=rngs)
        self.fc = nnx.Linear(27, 4, rngs=rngs)

    def __call__(self, x):
        return self.fc(nnx.relu(self.conv(x)).reshape(*x.shape[:-3], 27))


F, PARAMS = jaxeff.functional(Net(nnx.Rngs(0)))


def test_every_method_is_held_to_the_laws():
    """A method that is added to the library has to be added here."""
    public = (getattr(compression, name) for name in compression.__all__)
    kinds = {q for q in public if inspect.isclass(q) and issubclass(q, BaseQuantizer)}
    used = {type(q) for m in METHODS.values() for q in (m.weights, m.activations)}
    assert kinds - {BaseQuantizer} <= used


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.promotes("dtype", "rank")
def test_laws(name):
    """Wrapped, vmapped, scanned, composed, differentiated: the same function, and its own names."""
    spec = init(F, PARAMS, X, {"conv": METHODS[name], "fc": None})

    def results(spec, key, params, x):
        def call(f, x=x, spec=spec):
            return quantized(f, spec, keyed=True)(key, params, x)

        plain = call(F)
        wrapped = {
            "jit": call(jax.jit(F)),
            "remat": call(jax.checkpoint(F)),
            "cond": call(lambda p, x: jax.lax.cond(p["fc"]["bias"][0] < 9, F, _nothing, p, x)),
        }
        many = jax.vmap(lambda spec: call(F, spec=spec), axis_size=2)(_twice(spec))

        def loss(spec, params):
            return jnp.sum(quantized(F, spec, keyed=True)(key, params, x) ** 2)

        gradient = jax.grad(loss, (0, 1), allow_int=True)(spec, params)
        gradient = [g for g in jax.tree.leaves(gradient) if g.dtype != jax.dtypes.float0]
        noisy = jaxeff.noisy(quantized(F, deterministic(spec)), {"fc": Additive(0.0)})(
            key, params, x
        )
        alone = quantized(F, deterministic(spec))(params, x)
        return plain, wrapped, many, gradient, (noisy, alone)

    plain, wrapped, many, gradient, (noisy, alone) = jax.jit(results)(spec, KEY, PARAMS, X)
    for result in wrapped.values():
        np.testing.assert_allclose(result, plain, rtol=1e-5, atol=1e-5)
    for result in many:
        np.testing.assert_allclose(result, plain, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(noisy, alone, rtol=1e-5, atol=1e-5)
    assert all(jnp.isfinite(leaf).all() for leaf in gradient)
    sites = [s.site for s in trace(quantized(F, deterministic(spec)), PARAMS, X).sites]
    assert {"conv", "fc"} <= set(sites)


def _nothing(params, x):
    return jnp.zeros((len(x), 4), x.dtype)


def _twice(tree):
    return jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * 2), tree)
