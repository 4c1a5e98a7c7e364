"""The laws of `tests/test_laws.py` for every quantizer there is, all of one in one program."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff import compression as jc
from jaxeff import contrib
from jaxeff.noise import Additive
from jaxeff.program import trace
from tests.bad_arguments import faces

METHODS = {
    "uniform": jc.LayerQuantization(jc.Uniform(3), jc.Uniform(4, per="sample")),
    "lsq": jc.LayerQuantization(jc.LSQ(3), jc.LSQ(4, asymmetric=True)),
    "pact": jc.LayerQuantization(jc.PACT(3), jc.PACT(4)),
    "width": jc.LayerQuantization(contrib.LearnedWidth(4), contrib.LearnedWidth(5)),
    "learned powers": jc.LayerQuantization(
        contrib.LearnedPowers(3), contrib.LearnedPowers(4, zero=True)
    ),
    "dorefa": jc.LayerQuantization(jc.DoReFa(2), jc.DoReFa(3)),
    "dorefa, gradients": jc.LayerQuantization(jc.DoReFa(2), jc.DoReFa(3, gradient_bits=4)),
    "stochastic": jc.LayerQuantization(jc.Stochastic(3), jc.Stochastic(4, per="sample")),
    "floating": jc.LayerQuantization(
        jc.Floating("e4m3"), jc.Floating("e5m2", scaling="power_of_two")
    ),
    "binary": jc.LayerQuantization(jc.Binary(), jc.Binary(gradient="polynomial")),
    "drawn": jc.LayerQuantization(jc.Binary(stochastic=True)),
    "bases": jc.LayerQuantization(contrib.BinaryBases(2), contrib.BinaryBases(2)),
    "ternary": jc.LayerQuantization(jc.Ternary(), jc.Ternary()),
    "trained ternary": jc.LayerQuantization(jc.TrainedTernary(), jc.TrainedTernary()),
    "powers": jc.LayerQuantization(jc.PowersOfTwo(3), jc.PowersOfTwo(4)),
    "incremental": jc.LayerQuantization(contrib.Incremental(4, 0.5)),
    "half-quadratic": jc.LayerQuantization(
        contrib.HalfQuadratic(3), contrib.HalfQuadratic(4, per="tensor")
    ),
    "half-wave": jc.LayerQuantization(jc.Binary(follow=True), contrib.HalfWave(2)),
    "basis": jc.LayerQuantization(
        contrib.LearnedBasis(2, turns=2), contrib.LearnedBasis(2, turns=2)
    ),
    "codebook": jc.LayerQuantization(jc.Codebook(2), jc.Codebook(2)),
    "relaxed": jc.LayerQuantization(contrib.Relaxed(3), contrib.Relaxed(3, draw="hard")),
    "bayesian bits": jc.LayerQuantization(contrib.BayesianBits(), contrib.BayesianBits()),
    "discrete": jc.LayerQuantization(contrib.Discrete()),
    "grouped": jc.LayerQuantization(jc.Grouped(jc.LSQ(3), 1)),
    "levels": jc.LayerQuantization(jc.Levels((-1.0, -0.2, 0.3, 1.0))),
    "rotated": jc.LayerQuantization(jc.Rotated(jc.Uniform(3)), jc.Rotated(jc.LSQ(3))),
    "scaled": jc.LayerQuantization(jc.Scaled(jc.Uniform(3), jnp.array(2.0))),
    "switched": jc.LayerQuantization(
        jc.Switched(jc.Uniform(3), jnp.array(True)), jc.Switched(jc.Uniform(3), jnp.array(False))
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
    public = (getattr(jc, name) for name in faces.offered(jc))
    kinds = {q for q in public if inspect.isclass(q) and issubclass(q, jc.BaseQuantizer)}
    used = {type(q) for m in METHODS.values() for q in (m.weights, m.activations)}
    assert kinds - {jc.BaseQuantizer} <= used


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.promotes("dtype", "rank")
def test_laws(name):
    """Wrapped, vmapped, scanned, composed, differentiated: the same function, and its own names."""
    spec = jc.init(F, PARAMS, X, {"conv": METHODS[name], "fc": None})

    def results(spec, key, params, x):
        def call(f, x=x, spec=spec):
            return jc.quantized(f, spec, keyed=True)(key, params, x)

        plain = call(F)
        wrapped = {
            "jit": call(jax.jit(F)),
            "remat": call(jax.checkpoint(F)),
            "cond": call(lambda p, x: jax.lax.cond(p["fc"]["bias"][0] < 9, F, _nothing, p, x)),
        }
        many = jax.vmap(lambda spec: call(F, spec=spec), axis_size=2)(_twice(spec))

        def loss(spec, params):
            return jnp.sum(jc.quantized(F, spec, keyed=True)(key, params, x) ** 2)

        gradient = jax.grad(loss, (0, 1), allow_int=True)(spec, params)
        gradient = [g for g in jax.tree.leaves(gradient) if g.dtype != jax.dtypes.float0]
        noisy = jaxeff.noisy(jc.quantized(F, jc.deterministic(spec)), {"fc": Additive(0.0)})(
            key, params, x
        )
        alone = jc.quantized(F, jc.deterministic(spec))(params, x)
        return plain, wrapped, many, gradient, (noisy, alone)

    plain, wrapped, many, gradient, (noisy, alone) = jax.jit(results)(spec, KEY, PARAMS, X)
    for result in wrapped.values():
        np.testing.assert_allclose(result, plain, rtol=1e-5, atol=1e-5)
    for result in many:
        np.testing.assert_allclose(result, plain, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(noisy, alone, rtol=1e-5, atol=1e-5)
    assert all(jnp.isfinite(leaf).all() for leaf in gradient)
    sites = [s.site for s in trace(jc.quantized(F, jc.deterministic(spec)), PARAMS, X).sites]
    assert {"conv", "fc"} <= set(sites)


def _nothing(params, x):
    return jnp.zeros((len(x), 4), x.dtype)


def _twice(tree):
    return jax.tree.map(lambda leaf: jnp.stack([jnp.asarray(leaf)] * 2), tree)
