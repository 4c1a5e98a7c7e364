"""Scientific computing: linear algebra, transforms, equations, special functions."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy import optimize, special

from tests.conformance.programs.family import Family, normal, uniform

FAMILY = Family("science")
program = FAMILY.program
SQUARE, BATCH = normal(6, 6), normal(3, 4, 4)


def definite(a):
    """A positive definite matrix."""
    return a @ a.swapaxes(-1, -2) + jnp.eye(a.shape[-1])


@program(SQUARE, normal(6, 2))
def _solve(a, b):
    return jnp.linalg.solve(a, b)


@program(BATCH)
def _inverse_and_determinant(a):
    return jnp.linalg.inv(a), jnp.linalg.det(a), jnp.linalg.slogdet(a)


@program(normal(7, 4))
def _qr(a):
    return jnp.linalg.qr(a)


@program(BATCH)
def _cholesky(a):
    return jnp.linalg.cholesky(definite(a))


@program(BATCH, normal(3, 4))
def _solve_by_cholesky(a, b):
    factor = jax.vmap(jax.scipy.linalg.cho_factor, (0,))(definite(a))[0]
    return jax.vmap(lambda f, b: jax.scipy.linalg.cho_solve((f, False), b))(factor, b)


@program(SQUARE, normal(6, 3))
def _triangular_solve(a, b):
    a = jnp.tril(a) + 3 * jnp.eye(6)
    return jax.scipy.linalg.solve_triangular(a, b, lower=True)


@program(SQUARE)
def _eigh(a):
    values, vectors = jnp.linalg.eigh(a + a.T)
    return values, jnp.abs(vectors)


@program(normal(6, 4))
def _svd(a):
    u, s, v = jnp.linalg.svd(a, full_matrices=False)
    return s, (u * s) @ v, jnp.linalg.norm(a, 2)


@program(SQUARE)
def _lu(a):
    return jax.scipy.linalg.lu(a)


@program(normal(4, 4, scale=0.5))
def _expm(a):
    return jax.scipy.linalg.expm(a)


@program(normal(9, 3), normal(9))
def _least_squares(a, b):
    return jnp.linalg.lstsq(a, b)[0], jnp.linalg.pinv(a)


@program(SQUARE)
def _matrix_power_and_norms(a):
    norms = [jnp.linalg.norm(a, o) for o in ("fro", 1, jnp.inf)]
    return jnp.linalg.matrix_power(a, 5), *norms, jnp.linalg.norm(a, axis=1)


@program(normal(5, dtype=np.float64), normal(5, 5, dtype=np.float64), wide=True)
def _solve_in_double_precision(b, a):
    return jnp.linalg.solve(a, b), jnp.linalg.inv(a), jnp.linalg.cholesky(definite(a))


@program(normal(4, 16))
def _power_spectrum_by_fft(x):
    return jnp.abs(jnp.fft.rfft(x)) ** 2


@program(normal(32), normal(32))
def _convolution_by_fft(x, y):
    return jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(y), 32)


@program(normal(8, 8))
def _low_pass_by_fft2(x):
    kept = jnp.fft.fft2(x) * (jnp.abs(jnp.fft.fftfreq(8)) < 0.3)
    return jnp.fft.ifft2(kept).real


@program(normal(2))
def _runge_kutta_of_an_oscillator(y):
    def slope(y):
        return jnp.array([y[1], (1 - y[0] ** 2) * y[1] - y[0]])

    def step(y, _):
        k1 = slope(y)
        k2 = slope(y + 0.025 * k1)
        k3 = slope(y + 0.025 * k2)
        y = y + 0.05 / 6 * (k1 + 2 * k2 + 2 * k3 + slope(y + 0.05 * k3))
        return y, y

    return lax.scan(step, y, length=100)[1]


@program(normal(3))
def _adaptive_ode_solver(y):
    from jax.experimental.ode import odeint

    return odeint(lambda y, t: -y + jnp.sin(t), y, jnp.linspace(0.0, 1.0, 4))


@program(uniform(5, low=1.0, high=9.0))
def _newton_by_while_loop(a):
    def going(state):
        return (jnp.max(jnp.abs(state[1])) > 1e-5) & (state[2] < 50)

    def step(state):
        x, _, n = state
        change = (x**3 - a) / (3 * x**2)
        return x - change, change, n + 1

    return lax.while_loop(going, step, (a, a, 0))


@program(np.float32(0.3))
def _bisection(c):
    def halve(_, interval):
        low, high = interval
        middle = (low + high) / 2
        above = jnp.cos(middle) - middle > c
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    return lax.fori_loop(0, 40, halve, (jnp.float32(0), jnp.float32(2)))


@program(SQUARE, normal(6))
def _conjugate_gradient(a, b):
    return jax.scipy.sparse.linalg.cg(definite(a), b, maxiter=20)[0]


@program(SQUARE, normal(6))
def _gmres(a, b):
    return jax.scipy.sparse.linalg.gmres(a + 6 * jnp.eye(6), b, maxiter=3)[0]


@program(SQUARE)
def _power_iteration(a):
    a = definite(a)

    def step(v, _):
        v = a @ v
        norm = jnp.linalg.norm(v)
        return v / norm, norm

    return lax.scan(step, jnp.ones(6), length=40)


@program(normal(6))
def _minimize_by_bfgs(x):
    def energy(x):
        return jnp.sum((x - 1) ** 2) + 0.1 * jnp.sum(x**4)

    return optimize.minimize(energy, x, method="BFGS", options={"maxiter": 10}).x


@program(uniform(24, low=0.1, high=6.0))
def _gamma_functions(x):
    return special.gammaln(x), special.digamma(x), jnp.exp(special.gammaln(x)), special.gamma(x)


@program(uniform(24, low=-0.95, high=0.95))
def _error_functions(x):
    return special.erf(x), special.erfc(x), special.erfinv(x), special.ndtri((x + 1) / 2)


@program(normal(24, scale=2.0))
def _normal_distribution(x):
    return special.ndtr(x), special.log_ndtr(x), jax.scipy.stats.norm.logpdf(x)


@program(uniform(12, low=0.2, high=5.0), uniform(12, low=0.2, high=5.0), uniform(12))
def _incomplete_beta_and_gamma(a, b, x):
    return special.betainc(a, b, x), special.gammainc(a, b), special.gammaincc(a, b)


@program(normal(24, scale=3.0))
def _bessel_functions(x):
    return special.i0e(x), special.i1e(x), special.i0(x), special.i1(x)


@program(uniform(12, low=1.1, high=5.0))
def _zeta_and_polygamma(x):
    return special.zeta(x, 2.0), special.polygamma(1, x), special.beta(x, 2.0)


@program(normal(4, 9, scale=30.0))
def _logsumexp_and_entropies(x):
    p = jax.nn.softmax(x)
    return special.logsumexp(x, 1), special.entr(p), special.rel_entr(p, 1 / 9), special.xlogy(p, p)


@program(normal(24))
def _hyperbolic_functions(x):
    functions = (jnp.sinh, jnp.cosh, jnp.arcsinh, jnp.arctan, jnp.expm1, jnp.cbrt, jnp.sinc)
    return [f(x) for f in functions] + [jnp.arccosh(1 + x**2), jnp.arctanh(jnp.tanh(x))]


@program(uniform(24))
def _trigonometric_functions(x):
    return [f(x) for f in (jnp.sin, jnp.cos, jnp.tan, jnp.arcsin, jnp.arccos, jnp.log1p)]


@program(normal(16, 16))
def _heat_equation(u):
    def step(u, _):
        padded = jnp.pad(u, 1, mode="edge")
        lap = padded[2:, 1:-1] + padded[:-2, 1:-1] + padded[1:-1, 2:] + padded[1:-1, :-2] - 4 * u
        return u + 0.2 * lap, None

    return lax.scan(step, u, length=50)[0]


@program(uniform(12, 12))
def _game_of_life(u):
    def step(_, u):
        shifts = [(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]
        count = sum(jnp.roll(u, s, (0, 1)) for s in shifts)
        return ((count == 3) | ((count == 2) & (u == 1))).astype(jnp.int32)

    return lax.fori_loop(0, 25, step, (u > 0.6).astype(jnp.int32))


@program(normal(5, 3), uniform(5, low=0.5), normal(5, 3))
def _gravity_of_several_bodies(x, mass, v):
    def force(x):
        apart = x[None] - x[:, None]
        cubed = (jnp.sum(apart**2, -1) + 0.1) ** 1.5
        return jnp.sum(mass[None, :, None] * apart / cubed[..., None], 1)

    def step(state, _):
        x, v = state
        v = v + 0.01 * force(x)
        x = x + 0.01 * v
        return (x, v), 0.5 * jnp.sum(mass[:, None] * v**2)

    return lax.scan(step, (x, v), length=60)


@program(normal(30, 2))
def _k_means(x):
    def step(centres, _):
        nearest = jnp.argmin(jnp.sum((x[:, None] - centres) ** 2, -1), 1)
        total = jax.ops.segment_sum(x, nearest, 3)
        count = jax.ops.segment_sum(jnp.ones(30), nearest, 3)
        return total / jnp.maximum(count, 1)[:, None], nearest

    return lax.scan(step, x[:3], length=8)


@program(normal(10, 2), normal(10), normal(5, 2))
def _gaussian_process(x, y, new):
    def kernel(a, b):
        return jnp.exp(-0.5 * jnp.sum((a[:, None] - b) ** 2, -1))

    factor = jnp.linalg.cholesky(kernel(x, x) + 0.1 * jnp.eye(10))
    cross = kernel(x, new)
    solved = jax.scipy.linalg.cho_solve((factor, True), y)
    half = jax.scipy.linalg.solve_triangular(factor, cross, lower=True)
    return cross.T @ solved, 1 - jnp.sum(half**2, 0)


@program(normal(20, 2))
def _kalman_filter(observed):
    a, q = jnp.array([[1.0, 0.1], [0.0, 1.0]]), 0.01 * jnp.eye(2)

    def step(state, z):
        m, p = a @ state[0], a @ state[1] @ a.T + q
        gain = p @ jnp.linalg.inv(p + 0.5 * jnp.eye(2))
        m = m + gain @ (z - m)
        return (m, p - gain @ p), m

    return lax.scan(step, (jnp.zeros(2), jnp.eye(2)), observed)[1]
