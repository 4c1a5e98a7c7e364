"""Oracles for moments: Monte Carlo over the function itself, and quadrature in float64."""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxeff.moment_propagation import is_gaussian


class Samples(NamedTuple):
    """Sample moments and their standard errors."""

    mean: np.ndarray
    var: np.ndarray
    mean_error: np.ndarray
    var_error: np.ndarray


def monte_carlo(
    f: Callable[..., Any], args: Any, count: int = 20_000, batch: int = 2_000
) -> Samples:
    """Moments of one array-valued `f` over draws of every Gaussian leaf of `args`.

    The standard error of the mean is sqrt(var / n); that of the variance uses the sample fourth
    moment, sqrt((m4 - var^2) / n).
    """
    leaves, structure = jax.tree.flatten(args, is_leaf=is_gaussian)

    def draw(key):
        keys = jax.random.split(key, len(leaves))
        drawn = [
            leaf.sample(k) if is_gaussian(leaf) else leaf
            for leaf, k in zip(leaves, keys, strict=True)
        ]
        return f(*structure.unflatten(drawn))

    keys = jax.random.split(jax.random.key(0), count)
    out = np.asarray(jax.jit(lambda k: jax.lax.map(draw, k, batch_size=batch))(keys), np.float64)
    mean, var = out.mean(0), out.var(0)
    fourth = ((out - mean) ** 4).mean(0)
    return Samples(mean, var, np.sqrt(var / count), np.sqrt(np.maximum(fourth - var**2, 0) / count))


def assert_matches(ours, samples: Samples, errors: float = 5.0, **bias: float) -> None:
    """Both moments within `errors` standard errors, plus a stated bias of the approximation.

    Keyword Args:
        mean: Allowed bias of the mean in standard deviations.
        var: Allowed relative bias of the variance.
    """
    slack = 1e-6 + 2e-6 * np.abs(samples.mean)  # float32
    std = np.sqrt(samples.var)
    off = np.abs(np.asarray(ours.mean) - samples.mean)
    assert (off <= errors * samples.mean_error + bias.get("mean", 0) * std + slack).all(), (
        f"mean off by {(off / (std + 1e-12)).max():.4f} standard deviations"
    )
    off = np.abs(np.asarray(ours.var) - samples.var)
    allowed = errors * samples.var_error + bias.get("var", 0) * samples.var + slack * std + 1e-9
    assert (off <= allowed).all(), (
        f"variance off by {(off / (samples.var + 1e-12)).max():.4f} relative"
    )


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)
_CUTS = (-6.0, -3.0, -1.0, -0.5, -0.25, 0.0, 0.5, 0.7, 1.0, 3.0, 6.0)


def exact(f: Callable[[Any], Any], mean: np.ndarray, std: np.ndarray) -> tuple[Any, Any]:
    """Moments of f(x) by Gauss-Legendre in pieces over +-12 standard deviations, in float64."""
    with jax.enable_x64():
        ends = [np.clip(c, mean - 12 * std, mean + 12 * std) for c in (-np.inf, *_CUTS, np.inf)]
        width = [hi - lo for lo, hi in itertools.pairwise(ends)]
        x = np.stack(
            [lo + w * (_NODES[:, None] + 1) / 2 for lo, w in zip(ends[:-1], width, strict=True)]
        )
        weight = np.stack([_WEIGHTS[:, None] * w / 2 for w in width])
        weight = weight * np.exp(-0.5 * ((x - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi))
        at_mean = np.asarray(jax.jit(f)(jnp.asarray(mean)))
        delta = np.asarray(jax.jit(f)(jnp.asarray(x))) - at_mean
        first, second = (weight * delta).sum((0, 1)), (weight * delta**2).sum((0, 1))
        return at_mean + first, second - first**2


class Oracle(NamedTuple):
    monte_carlo: Callable = monte_carlo
    assert_matches: Callable = assert_matches
    exact: Callable = exact


@pytest.fixture(scope="session")
def oracle() -> Oracle:
    """The oracles of this room."""
    return Oracle()
