"""Inference on batches of iterables: the same examples in arrays are the oracle."""

import jax
import numpy as np
import pytest
from flax import nnx

from jaxeff import core
from jaxeff.bayes import laplace, svi
from jaxeff.nn import MLP
from jaxeff.training import Batches, CheckpointError

pytestmark = pytest.mark.promotes("dtype")  # optax does
KEY, EXAMPLES, SIZE = jax.random.key(0), 48, 16
X = np.asarray(jax.random.normal(jax.random.key(1), (EXAMPLES, 4)))
Y = (X.sum(-1) > 0).astype(np.int32)
F, PARAMS = core.functional(MLP((4, 8, 2), rngs=nnx.Rngs(0)))
REST = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("diag", "full", "lowrank", "last_layer")
]
RUN = {"epochs": 3, "init_scale": 1e-2}


def as_drawn(epoch):
    """The batches that `svi` draws from arrays in an epoch."""
    shuffle, _ = jax.random.split(jax.random.fold_in(KEY, epoch))
    for rows in np.asarray(jax.random.permutation(shuffle, EXAMPLES)).reshape(3, SIZE):
        yield X[rows], Y[rows]


def cut(size):
    return [(X[i : i + size], Y[i : i + size]) for i in range(0, EXAMPLES, size)]


def same(a, b, **tolerance):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


@pytest.mark.slow
def test_svi_of_batches_is_that_of_arrays(tmp_path):
    arrays = svi(KEY, F, PARAMS, (X, Y), batch_size=SIZE, **RUN)
    data = Batches(as_drawn, name="digits", length=3)
    batches = svi(KEY, F, PARAMS, data, checkpoint=tmp_path / "run", **RUN)
    same(batches.posterior, arrays.posterior, atol=1e-6)
    for one, other in zip(batches.history, arrays.history, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    other = Batches(as_drawn, name="letters", length=3)
    with pytest.raises(CheckpointError, match="'digits' there and 'letters' here"):
        svi(KEY, F, PARAMS, other, checkpoint=tmp_path / "run", **RUN)


def test_svi_needs_the_number_of_batches():
    with pytest.raises(ValueError, match=r"training\.Batches\(data, length=\.\.\.\)"):
        svi(KEY, F, PARAMS, (pair for pair in cut(SIZE)), **RUN)
    broken = Batches([(X[:SIZE] * np.nan, Y[:SIZE])])
    with pytest.raises(ValueError, match=r"svi: data\[0\] holds NaN"):
        svi(KEY, F, PARAMS, broken, **RUN)
    with pytest.raises(core.MisfitError, match="svi: data"):
        svi(KEY, F, PARAMS, Batches([(X[:SIZE, :2], Y[:SIZE])]), **RUN)


@pytest.mark.parametrize("structure", ["kron", *REST])
def test_laplace_of_batches_is_that_of_arrays(structure):
    settings = {"structure": structure, "prior_precision": 1.0}
    if structure == "lowrank":
        settings["rank"] = 5
    arrays = laplace(KEY, F, PARAMS, (X, Y), batch_size=20, **settings)
    batches = laplace(KEY, F, PARAMS, Batches(cut(20)), **settings)  # the last has 8
    np.testing.assert_allclose(batches.log_likelihood, arrays.log_likelihood, rtol=1e-5)
    same(*(each.marginals(X[:3]).var for each in (batches, arrays)), rtol=1e-4)


def test_laplace_draws_labels_of_batches_and_reads_an_iterator_once():
    drawn = laplace(KEY, F, PARAMS, iter(cut(SIZE)), draws=400, prior_precision=1.0)
    exact = laplace(KEY, F, PARAMS, (X, Y), prior_precision=1.0)
    a, b = (np.asarray(each.marginals(X[:8]).var) for each in (drawn, exact))
    np.testing.assert_allclose(a, b, rtol=0.15)  # 400 draws for each of 48 examples
    with pytest.raises(ValueError, match="an iterator is read once"):
        laplace(KEY, F, PARAMS, iter(cut(SIZE)), structure="lowrank", rank=5, prior_precision=1.0)
