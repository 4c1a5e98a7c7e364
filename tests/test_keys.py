"""Numbers of `fast_key` against the distributions they stand for, and against each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from jaxeff.core import fast_key
from jaxeff.store import CheckpointError, require_same_run, run_identity
from jaxeff.training import load_pytree, save_pytree

N = 1_000_000
SEEDS = (0, 1, 2**31)


@pytest.mark.parametrize("seed", SEEDS)
def test_bytes_are_uniform_at_every_place(seed):
    words = np.asarray(jax.random.bits(fast_key(seed), (N,)))
    for place in range(4):
        counts = np.bincount(words >> (8 * place) & 255, minlength=256)
        assert scipy.stats.chisquare(counts).pvalue > 1e-4


@pytest.mark.parametrize("seed", SEEDS)
def test_normal_numbers(seed):
    x = np.asarray(jax.random.normal(fast_key(seed), (N,)), float)
    assert scipy.stats.kstest(x, "norm").pvalue > 1e-4
    error = 4 / np.sqrt(N)  # four standard errors, of the moments of a normal distribution
    assert abs(x.mean()) < error
    assert abs(x.var() - 1) < np.sqrt(2) * error
    assert abs((x**3).mean()) < np.sqrt(15) * error
    assert abs((x**4).mean() - 3) < np.sqrt(96) * error


def streams():
    """Pairs of numbers that ought to be independent."""
    key = fast_key(5)
    x = jax.random.normal(key, (N,))
    yield "one after the other", x[:-1], x[1:]
    yield "rows of a batch", *x.reshape(2, -1)
    yield "rows of 784", x[:-784], x[784:]
    folded = [jax.random.normal(jax.random.fold_in(key, i), (N,)) for i in (0, 1)]
    yield "folded keys", *folded
    yield "a key and its child", x, folded[0]
    yield "split keys", *(jax.random.normal(k, (N,)) for k in jax.random.split(key))
    yield "seeds", x, jax.random.normal(fast_key(6), (N,))
    data = jax.random.key_data(key)
    for i in (0, 1):
        near = jax.random.wrap_key_data(data.at[i].add(1), impl=jax.random.key_impl(key))
        yield f"keys that differ by one in word {i}", x, jax.random.normal(near, (N,))


@pytest.mark.slow
def test_streams_are_independent():
    for name, x, y in streams():
        for power in (1, 2, 3):
            correlation = np.corrcoef(np.asarray(x) ** power, np.asarray(y) ** power)[0, 1]
            assert abs(correlation) < 4 / np.sqrt(len(x)), name


def test_it_is_a_key_like_any_other():
    key = fast_key(3)
    eager = jax.random.normal(key, (4, 5))
    np.testing.assert_array_equal(jax.jit(lambda k: jax.random.normal(k, (4, 5)))(key), eager)
    keys = jax.random.split(key, 3)
    many = jax.vmap(lambda k: jax.random.uniform(k, (2,)))(keys)
    np.testing.assert_array_equal(many[1], jax.random.uniform(keys[1], (2,)))
    np.testing.assert_array_equal(jnp.sort(jax.random.permutation(key, 9)), jnp.arange(9))
    assert not np.array_equal(eager, jax.random.normal(fast_key(4), (4, 5)))


@pytest.mark.parametrize("width", [8, 16, 32])
def test_widths(width):
    bits = np.asarray(jax.random.bits(fast_key(1), (100_000,), f"uint{width}"), float)
    assert scipy.stats.kstest((bits + 0.5) / 2**width, "uniform").statistic < 2.0**-width + 0.01


def test_checkpoints_know_it(tmp_path):
    key = fast_key(3)
    save_pytree(tmp_path / "run", {"key": key})
    loaded = load_pytree(tmp_path / "run")["key"]
    np.testing.assert_array_equal(jax.random.normal(loaded, (3,)), jax.random.normal(key, (3,)))
    identities = [run_identity(k, jnp.zeros(2), {}) for k in (key, jax.random.key(3))]
    with pytest.raises(CheckpointError, match="implementation"):
        require_same_run("it is", *identities)
