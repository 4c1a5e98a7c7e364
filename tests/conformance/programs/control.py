"""Control flow and custom rules: loops in loops, branches, vmaps of both, derivatives by hand."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.conformance.programs.family import Family, integers, normal

FAMILY = Family("control")
program = FAMILY.program
N, X = np.int32(7), normal(6)


@program(X, N)
def _cond(x, n):
    return lax.cond(n > 3, lambda x: jnp.sin(x).sum(), lambda x: x @ x, x)


@program(normal(8, 8), N)
def _cond_of_matrix_products(x, n):
    return lax.cond(n % 2 == 0, lambda x: x @ x, lambda x: jax.nn.softmax(x @ x.T), x)


@program(X, integers(high=4))
def _switch(x, i):
    return lax.switch(i, [jnp.sin, jnp.cos, lambda x: jnp.cumsum(x), lambda x: x[::-1]], x)


@program(X, N)
def _while_loop(x, n):
    return lax.while_loop(lambda c: c[1] < n, lambda c: (c[0] * 1.1 + 0.1, c[1] + 1), (x, 0))


@program(N)
def _collatz(n):
    def step(c):
        n, count = c
        return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

    return lax.while_loop(lambda c: c[0] != 1, step, (n, 0))


@program(X)
def _fori_loop(x):
    return lax.fori_loop(0, 1000, lambda i, x: x + jnp.sin(x) / (i + 1.0), x)


@program(X, N)
def _fori_loop_of_unknown_length(x, n):
    return lax.fori_loop(0, n, lambda i, x: x.at[i % 6].add(1.0), x)


@program(normal(50, 6))
def _scan(xs):
    return lax.scan(lambda c, x: (0.9 * c + x, jnp.tanh(c)), jnp.zeros(6), xs)


@program(normal(12, 5, 3))
def _nested_scans(xs):
    def outer(c, x):
        c, y = lax.scan(lambda c, v: (jnp.tanh(c + v), c.sum()), c, x)
        return c, y

    return lax.scan(outer, jnp.zeros(3), xs)


@program(normal(30, 4), N)
def _cond_in_a_scan(xs, n):
    def step(c, x):
        c = lax.cond(c.sum() > 0, lambda c: c - x @ x, lambda c: c + jnp.abs(x), c)
        return c, c

    return lax.scan(step, jnp.zeros(4), xs)


@program(normal(5, 4))
def _while_loop_in_a_scan(xs):
    def step(c, x):
        x = lax.while_loop(lambda v: v @ v > 0.1, lambda v: v / 2, x)
        return c + x, x

    return lax.scan(step, jnp.zeros(4), xs)


@program(normal(4, 6), integers(4, low=1, high=9))
def _vmap_of_a_while_loop(x, n):
    def f(x, n):
        return lax.while_loop(lambda c: c[1] < n, lambda c: (jnp.cos(c[0]), c[1] + 1), (x, 0))[0]

    return jax.vmap(f)(x, n)


@program(normal(4, 6), integers(4, high=2))
def _vmap_of_a_cond(x, p):
    return jax.vmap(lambda x, p: lax.cond(p > 0, jnp.sort, lambda x: -x, x))(x, p)


@program(normal(3, 20, 4))
def _vmap_of_a_scan(xs):
    return jax.vmap(lambda x: lax.scan(lambda c, v: (c * 0.5 + v, c), jnp.ones(4), x))(xs)


@program(normal(4, 6))
def _map_with_batches(x):
    return lax.map(lambda v: jnp.sort(v)[:3].sum(), x, batch_size=2)


@program(normal(20, 4), normal(4, 4, scale=0.3))
def _gradient_of_a_scan(xs, w):
    def loss(w):
        return lax.scan(lambda c, x: (jnp.tanh(w @ c + x), None), jnp.zeros(4), xs)[0].sum()

    return jax.value_and_grad(loss)(w)


@program(X, N)
def _gradient_of_a_cond(x, n):
    return jax.grad(lambda x: lax.cond(n > 3, lambda x: jnp.sum(x**3), jnp.sum, x))(x)


@program(normal(20, 4), normal(4, 4, scale=0.3))
def _gradient_with_checkpoints(xs, w):
    @jax.checkpoint
    def step(c, x):
        return jnp.tanh(w @ c + x), c.sum()

    def loss(xs):
        c, sums = lax.scan(step, jnp.zeros(4), xs)
        return c.sum() + sums.mean()

    return jax.grad(loss)(xs)


@program(normal(6, 4), normal(4, 4))
def _checkpointed_layers(x, w):
    @jax.checkpoint
    def layer(x):
        return jnp.sin(x @ w)

    return jax.grad(lambda x: layer(layer(x)).sum())(x)


@jax.custom_jvp
def _softened(x):
    return jnp.log1p(jnp.exp(x))


@_softened.defjvp
def _softened_jvp(primals, tangents):
    return _softened(*primals), tangents[0] * jax.nn.sigmoid(primals[0])


@program(X)
def _custom_jvp(x):
    return _softened(x), jax.grad(lambda x: _softened(x).sum())(x), jax.jvp(_softened, (x,), (x,))


@jax.custom_vjp
def _clipped(x):
    return x


_clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.5, 0.5),))


@program(X)
def _custom_vjp(x):
    return _clipped(x), jax.grad(lambda x: jnp.sum(_clipped(x) ** 3))(x)


@program(X)
def _implicit_gradient_of_a_fixed_point(x):
    def solve(a):
        return lax.custom_root(
            lambda y: y - jnp.cos(a * y),
            jnp.zeros_like(a),
            lambda f, y: lax.fori_loop(0, 30, lambda _, y: y - 0.5 * f(y), y),
            lambda g, y: y / g(jnp.ones_like(y)),
        )

    return solve(x), jax.grad(lambda a: solve(a).sum())(x)


@program(X)
def _composite(x):
    def scale(x, *, factor):
        return x * factor + jnp.max(x)

    return lax.composite(scale, name="example.scale")(x, factor=np.float32(3.0))


@program(X)
def _nested_jits(x):
    inner = jax.jit(lambda x: jnp.sin(x) + 1)
    outer = jax.jit(lambda x: inner(x) * inner(2 * x))
    return outer(x), outer(outer(x))


@program(X, {"a": normal(3), "b": (normal(2, 2), N)})
def _nested_inputs_and_outputs(x, tree):
    return {"tree": jax.tree.map(lambda v: v * 2, tree), "x": x, "both": (x, x + 1)}


@program(X)
def _unused_and_constant_results(x):
    return jnp.arange(4), jnp.ones((2, 3)), x, 3.0


@program(np.int32(200_000))
def _long_while_loop(n):
    def step(c):
        i, x = c
        return i + 1, x * jnp.uint32(1664525) + jnp.uint32(1013904223)

    return lax.while_loop(lambda c: c[0] < n, step, (0, jnp.uint32(1)))


@program(integers(24, high=100))
def _bubble_sort(x):
    def swap(j, x):
        a, b = x[j], x[j + 1]
        return x.at[j].set(jnp.minimum(a, b)).at[j + 1].set(jnp.maximum(a, b))

    return lax.fori_loop(0, 24, lambda i, x: lax.fori_loop(0, 23, swap, x), x)


@program(integers(8, 8, low=1, high=20))
def _shortest_paths(d):
    d = jnp.where(jnp.eye(8, dtype=bool), 0, d)
    return lax.fori_loop(0, 8, lambda k, d: jnp.minimum(d, d[:, k, None] + d[k]), d)


@program(np.float32(0.1))
def _mandelbrot(shift):
    y, x = jnp.mgrid[-1:1:16j, -2:1:16j]

    def step(_, c):
        a, b, n = c
        a, b = a * a - b * b + x + shift, 2 * a * b + y
        return a, b, n + (a * a + b * b < 4)

    zero = jnp.zeros((16, 16))
    return lax.fori_loop(0, 30, step, (zero, zero, jnp.zeros((16, 16), jnp.int32)))[2]
