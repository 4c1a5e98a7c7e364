"""`LearnedBasis` against LQ-Net's equations, by NumPy; updates of an array and of a model."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff import compression as jc
from jaxeff import contrib
from jaxeff.nn import small_classifier
from tests.compression.tensors import DATA, WEIGHT

W = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
G = np.random.default_rng(1).normal(size=(40, 3)).astype(np.float32)
X = jnp.asarray(W)


def encode(x, v, ends):
    """The codes of the nearest of all levels, eq. 4 to 7."""
    codes = np.array(list(itertools.product(ends, repeat=len(v))))
    return codes[np.abs(x[..., None] - codes @ v).argmin(-1)]


@pytest.mark.parametrize(("tensor", "ends"), [(WEIGHT, (-1, 1)), (DATA, (0, 1))])
def test_levels_and_gradients(tensor, ends):
    v = np.array([0.3, 0.8], np.float32)
    q = contrib.LearnedBasis(2, jnp.asarray(v))
    b = encode(W, v, ends)
    np.testing.assert_allclose(q.quantize(X, tensor), b @ v, rtol=1e-6)
    np.testing.assert_array_equal(q.quantize(q.quantize(X, tensor), tensor), q.quantize(X, tensor))
    of_q, slope = jax.grad(lambda q, x: jnp.vdot(G, q.quantize(x, tensor)), (0, 1))(q, X)
    np.testing.assert_allclose(of_q.basis, np.einsum("ij,ijk->k", G, b), rtol=1e-4, atol=1e-5)
    passes = np.ones_like(W) if tensor is WEIGHT else v.sum() >= W
    np.testing.assert_allclose(slope, G * passes, rtol=1e-6)


@pytest.mark.parametrize(("tensor", "ends"), [(WEIGHT, (-1, 1)), (DATA, (0, 1))])
def test_an_update_is_a_turn_averaged(tensor, ends):
    # Eq. 8: v = (B^T B)^-1 B^T x; momentum .9 as in the authors' code.
    v = np.array([0.3, 0.8], np.float32)
    columns = list(W.T) if tensor is WEIGHT else [W.ravel()]
    bases = np.stack([v] * 3)[None] if tensor is WEIGHT else v
    ours = contrib.LearnedBasis(2, jnp.asarray(bases)).update_statistics(X, tensor).basis
    best = [np.linalg.lstsq(encode(x, v, ends), x, rcond=None)[0] for x in columns]
    expected = 0.9 * bases + 0.1 * (np.stack(best)[None] if tensor is WEIGHT else best[0])
    np.testing.assert_allclose(ours, expected, rtol=1e-5)


@pytest.mark.slow
def test_turns_never_make_the_error_larger():
    def error(turns):
        q = contrib.LearnedBasis(3, turns=turns)
        return jnp.mean((q.quantize(X, WEIGHT) - X) ** 2, 0)

    errors = np.stack([error(turns) for turns in (1, 2, 4, 8)])
    assert (np.diff(errors, axis=0) <= 1e-7).all()
    assert (errors[-1] < errors[0]).any()


def test_two_bits_of_a_gaussian_reach_the_optimum():
    # Four levels of {-1, +1}^2 are any symmetric four: Max (1960) has the error .1175 for them.
    x = jax.random.normal(jax.random.key(0), (50_000, 1))
    q = contrib.LearnedBasis(2, turns=40)
    error = np.asarray((jax.jit(lambda x: q.quantize(x, WEIGHT))(x) - x) ** 2)
    assert abs(error.mean() - 0.11748) < 4 * error.std() / np.sqrt(error.size)


def test_what_is_not_determined_stays():
    # One value alone uses one code: its level becomes the value, by the shortest way.
    x, v = jnp.full((4, 1), 1.0), jnp.array([[[0.2, 0.4]]])
    q = contrib.LearnedBasis(2, v, momentum=0.0).update_statistics(x, WEIGHT)
    np.testing.assert_allclose(q.basis, v + (1 - 0.6) / 2, rtol=1e-6)


@pytest.mark.slow
def test_a_model_is_updated_within_a_compiled_step():
    f, params, (x, _) = small_classifier()
    method = contrib.LearnedBasis(2, turns=1)
    spec = jc.init(f, params, x[:64], {"*:linear": jc.LayerQuantization(method, method)})
    new = jax.jit(lambda params, x, spec: jc.update_statistics(f, params, x, spec))(
        params, x[64:128], spec
    )
    assert jax.tree.structure(new) == jax.tree.structure(spec)
    moved = [
        float(jnp.abs(a - b).max())
        for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(spec), strict=True)
    ]
    assert min(moved) > 0
    assert max(moved) < 0.5
    # By hand, for what the first layer reads.
    site = next(iter(spec))
    tensor = jc.Tensor(site, "input_0", "activation", 2)
    by_hand = spec[site].activations.update_statistics(x[64:128], tensor)
    np.testing.assert_allclose(new[site].activations.basis, by_hand.basis, rtol=1e-5)
    assert jnp.isfinite(jc.quantized(f, new)(params, x)).all()
    # Methods without a rule stay.
    other = jc.init(f, params, x, {"*:linear": jc.LayerQuantization(jc.Codebook(2))})
    same = jc.update_statistics(f, params, x, other)
    assert all(map(np.array_equal, jax.tree.leaves(same), jax.tree.leaves(other)))
    with pytest.raises(ValueError, match=r"needs a setting for .* itself"):
        jc.update_statistics(f, params, x, {"*:linear": contrib.LearnedBasis(2)})


def test_bits_of_an_array():
    assert contrib.LearnedBasis(2).storage((40, 3), WEIGHT) == 120 * 2 + 3 * 2 * 32
