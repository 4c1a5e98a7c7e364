"""What an installed jaxeff is tried with: noise and moments of a network, without any extra."""

from importlib import metadata
from pathlib import Path

import jax
import jaxeff_export
from flax import nnx

import jaxeff
from jaxeff.nn import SmallCNN

for package in (jaxeff, jaxeff_export):
    assert package.__file__ is not None
    assert Path(package.__file__).parents[1].name == "site-packages", package.__file__
assert metadata.version("jaxeff") == jaxeff.__version__

x = jax.numpy.ones((2, 28, 28, 1))
f, params = jaxeff.functional(SmallCNN(rngs=nnx.Rngs(0)))
noisy = jaxeff.noisy(f, {"*": jaxeff.Additive(0.1)})(jax.random.key(0), params, x)
assert noisy.shape == (2, 10)
assert (noisy != f(params, x)).all()
random = jax.tree.map(lambda w: jaxeff.Gaussian(w, 0.01 * w**2), params)
assert (jaxeff.moments(f)(random, x).var > 0).all()
