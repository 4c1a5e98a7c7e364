"""The idioms of jax.numpy: products, sorting, indexing, histograms, windows, shapes."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.conformance.programs.family import Family, integers, normal, uniform

FAMILY = Family("arrays")
program = FAMILY.program
V, M = normal(40), normal(6, 9)


@program(normal(3, 4, 5), normal(5, 4, 2), normal(3, 2))
def _einsum(a, b, c):
    return (
        jnp.einsum("ijk,kjl->il", a, b),
        jnp.einsum("ijk,kjl,il->j", a, b, c),
        jnp.einsum("iij->j", a[:, :3]),
    )


@program(normal(5, 4), normal(3, 2), normal(4, 3), normal(4, 3))
def _kron_outer_and_cross(a, b, u, v):
    return jnp.kron(a, b), jnp.outer(a, b), jnp.cross(u, v), jnp.vdot(u, v), jnp.inner(u, v)


@program(M)
def _sort_and_argsort(x):
    return jnp.sort(x), jnp.argsort(x, axis=0), jnp.sort(x, descending=True)


@program(integers(30, high=4), integers(30, high=4), V)
def _lexsort(a, b, c):
    return jnp.lexsort((c[:30], b, a)), jnp.argsort(a, stable=True)


@program(M)
def _top_k(x):
    return lax.top_k(x, 3)


@program(M)
def _argmax_and_argmin(x):
    return x.argmax(), x.argmax(0), x.argmin(1), jnp.nanargmax(x)


@program(uniform(12), V)
def _searchsorted(a, v):
    a = jnp.sort(a)
    return [jnp.searchsorted(a, v, method=m) for m in ("scan", "sort", "compare_all")]


@program(V, normal(10))
def _digitize(x, bins):
    return jnp.digitize(x, jnp.sort(bins))


@program(integers(30, high=9))
def _unique_with_size(x):
    return jnp.unique(x, size=12, fill_value=-1, return_counts=True, return_inverse=True)


@program(V)
def _histogram(x):
    return jnp.histogram(x, bins=7), jnp.histogram(x, bins=5, range=(-1, 1))[0]


@program(integers(50, high=12), normal(50))
def _bincount(x, weights):
    return jnp.bincount(x, length=12), jnp.bincount(x, weights, length=15)


@program(normal(20, 3), integers(20, high=5))
def _segment_reductions(x, ids):
    functions = (jax.ops.segment_sum, jax.ops.segment_max, jax.ops.segment_min)
    return [f(x, ids, num_segments=6) for f in (*functions, jax.ops.segment_prod)]


@program(M)
def _cumulative_operations(x):
    functions = (jnp.cumsum, jnp.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp)
    return [f(x, axis=axis) for f in functions for axis in (0, 1)]


@program(uniform(20), normal(8), normal(8))
def _interp(x, xp, fp):
    return jnp.interp(x, jnp.sort(xp), fp)


@program(normal(20), normal(5))
def _convolve_and_correlate(x, w):
    return [jnp.convolve(x, w, mode=m) for m in ("full", "same")] + [jnp.correlate(x, w)]


@program(M)
def _median_and_percentile(x):
    return jnp.median(x), jnp.percentile(x, jnp.array([10.0, 75.0]), axis=1), jnp.ptp(x)


@program(M)
def _quantile_methods(x):
    return [jnp.quantile(x, 0.3, 0, method=m) for m in ("lower", "nearest", "midpoint")]


@program(M)
def _variance_and_covariance(x):
    return x.var(ddof=1), x.std(0), jnp.cov(x), jnp.corrcoef(x)


@program(M)
def _nan_statistics(x):
    x = jnp.where(x > 0.8, jnp.nan, x)
    return jnp.nanmean(x, 0), jnp.nansum(x), jnp.nanmax(x, 1), jnp.nanstd(x), jnp.nan_to_num(x)


@program(M)
def _logical_reductions(x):
    return (x > 1).any(0), (x > -1).all(1), jnp.count_nonzero(x > 0), jnp.isclose(x, 0, atol=0.5)


@program(M)
def _roll_flip_and_rotate(x):
    return jnp.roll(x, 2), jnp.roll(x, (1, -2), (0, 1)), jnp.flip(x, 1), jnp.rot90(x)


@program(M)
def _pad_modes(x):
    modes = ("constant", "edge", "reflect", "symmetric", "wrap", "linear_ramp", "mean")
    return [jnp.pad(x, ((1, 2), (3, 0)), mode=m) for m in modes]


@program(M)
def _tile_repeat_and_stack(x):
    return jnp.tile(x, (2, 1, 3)), jnp.repeat(x, 2, 1), jnp.stack([x, -x], 1), jnp.hstack([x, x])


@program(M)
def _split_and_squeeze(x):
    return jnp.split(x, 3, 1), jnp.array_split(x, 4), jnp.squeeze(x[None, ..., None]), x.ravel()


@program(M, integers(6, 2, high=9))
def _take_along_axis(x, i):
    return jnp.take_along_axis(x, i, 1), jnp.take(x, i, axis=1, mode="wrap"), x[i[:, 0], i[:, 1]]


@program(M, integers(4, low=-3, high=12))
def _out_of_bounds_indices(x, i):
    return x.at[:, i].get(mode="fill", fill_value=-1), x.at[:, i].get(mode="clip"), x[:, i]


@program(M)
def _slices_of_every_kind(x):
    return x[1:-1, ::2], x[::-1, 3], x[..., None, -1], x[jnp.array([0, 2])][:, 1:4], x[-2:]


@program(M)
def _boolean_mask(x):
    return jnp.where(x > 0, x, 0.1 * x), jnp.where(x > 0, size=60, fill_value=-1)


@program(V)
def _nonzero_with_size(x):
    return jnp.nonzero(x > 0, size=30, fill_value=-1), jnp.argwhere(x < -1, size=10)


@program(V)
def _compress_by_mask(x):
    chosen = jnp.flatnonzero(x > 0, size=16, fill_value=0)
    return x[chosen], jnp.sum(x > 0)


SCATTERED = (M, integers(5, high=6), normal(5, 9))


@program(*SCATTERED)
def _scatter_set_and_add(x, i, u):
    return x.at[jnp.unique(i, size=3)].set(2.0), x.at[i].add(u), x.at[i, i].add(1.0)


@program(*SCATTERED)
def _scatter_min_max_and_multiply(x, i, u):
    return x.at[i].min(u), x.at[i].max(u), x.at[i].multiply(u), x.at[:, 2].divide(3.0)


@program(*SCATTERED)
def _scatter_slices(x, i, u):
    return x.at[1:3, ::2].set(7.0), x.at[::-1].add(x), x.at[i[0]].set(u[0]), x.at[-1, -1].mul(2)


@program(*SCATTERED)
def _scatter_and_apply(x, i, u):
    return x.at[i[:2]].apply(jnp.sin), x.at[i + 3].set(u, mode="drop", unique_indices=False).sum()


@program(M)
def _triangles_and_diagonals(x):
    return jnp.tril(x), jnp.triu(x, 2), jnp.diag(x), jnp.diagonal(x, 1), jnp.trace(x), jnp.eye(4, 5)


@program(normal(5), normal(7))
def _meshgrid(x, y):
    return jnp.meshgrid(x, y, indexing="ij"), jnp.linspace(x[0], 2.0, 9), jnp.logspace(0, 2, 5)


@program(normal(8, 3), normal(6, 3))
def _pairwise_distances(x, y):
    return jnp.sqrt(jnp.sum((x[:, None] - y[None]) ** 2, -1)), jnp.argmin(-2 * x @ y.T, 1)


@program(integers(20, low=-50, high=50), integers(20, low=1, high=9))
def _integer_arithmetic(x, y):
    return x // y, x % y, jnp.divmod(x, -y), lax.div(x, y), lax.rem(x, y), jnp.gcd(x, y), x**2


@program(integers(20, high=1 << 30), integers(20, high=31))
def _bit_operations(x, y):
    bits = x & 0xFF, x | y, x ^ y, ~x, x << y, x >> y, lax.population_count(x), lax.clz(x)
    return *bits, jnp.packbits(x.astype(jnp.uint8) & 1), jnp.unpackbits(x.astype(jnp.uint8))


@program(normal(20, scale=5.0))
def _rounding(x):
    return jnp.round(x), jnp.floor(x), jnp.ceil(x), jnp.trunc(x), jnp.round(x, 1), jnp.modf(x)


@program(normal(20), normal(20))
def _elementwise_pairs(x, y):
    functions = (jnp.arctan2, jnp.hypot, jnp.logaddexp, jnp.fmax, jnp.copysign, jnp.nextafter)
    return [f(x, y) for f in (*functions, jnp.fmod, jnp.float_power, jnp.heaviside)]


@program(normal(3, 4, 5))
def _transpose_and_move_axes(x):
    return x.transpose(2, 0, 1), jnp.moveaxis(x, 0, -1), jnp.swapaxes(x, 0, 1), x.reshape(-1, 6)


@program(V)
def _moving_windows(x):
    starts = jnp.arange(0, 30, 3)
    return jax.vmap(lambda s: lax.dynamic_slice(x, (s,), (8,)))(starts).mean(1)


@program(normal(12, 12))
def _image_filters(x):
    sobel = jnp.array([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]])
    gradient = jax.scipy.signal.convolve2d(x, sobel, mode="same")
    return gradient, lax.reduce_window(x, -jnp.inf, lax.max, (3, 3), (1, 1), "SAME")


@program(V)
def _select_and_piecewise(x):
    chosen = jnp.select([x < -1, x < 1], [x**2, x**3], 0.0)
    return chosen, jnp.piecewise(x, [x < 0, x > 1], [0.0, lambda v: v - 1, jnp.sin])


@program(normal(6))
def _polynomials(c):
    x = jnp.linspace(-1, 1, 11)
    return jnp.polyval(c, x), jnp.polyder(c), jnp.convolve(c, c), jnp.vander(x, 4)


@program(np.zeros((0, 3), np.float32), normal(4, 3))
def _empty_arrays(empty, x):
    return empty.sum(0), jnp.concatenate([empty, x]), empty @ x.T, jnp.cumsum(empty, 1)


@program(np.float32(0.7), np.int32(3))
def _scalars(x, n):
    return x * n + 1, jnp.sin(x) ** n, n > x, jnp.asarray(x, jnp.bfloat16), -n


@program(normal(10, dtype=np.float64), integers(10, dtype=np.int64), wide=True)
def _sixty_four_bit_types(x, n):
    return x @ x, jnp.sort(x), n.sum(), jnp.cumsum(n), x.astype(jnp.float32), n // 3, jnp.exp(x)


@program(normal(9), integers(9))
def _type_conversions(x, n):
    kinds = (jnp.int8, jnp.uint8, jnp.int16, jnp.float16, jnp.bfloat16, bool)
    return [x.astype(k) for k in kinds] + [n.astype(k) for k in kinds] + [x.view(jnp.int32)]
