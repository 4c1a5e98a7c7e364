"""Primitives that common architectures are made of: moments that are finite, or a named refusal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxeff.moment_propagation import Gaussian, MomentsError, moments

KEYS = jax.random.split(jax.random.key(0), 3)
X = Gaussian(jax.random.normal(KEYS[0], (4, 6)), jnp.full((4, 6), 0.05))
IMAGE = Gaussian(jax.random.normal(KEYS[1], (2, 6, 6, 3)), jnp.full((2, 6, 6, 3), 0.05))
KERNEL = jax.random.normal(KEYS[2], (3, 3, 3, 4)) / 5
NHWC = ("NHWC", "HWIO", "NHWC")
SEGMENTS = jnp.array([0, 0, 2, 1])
INDEX = jnp.array([[3], [0], [0]])


def windows(reduce, start):
    return lambda x: lax.reduce_window(x, start, reduce, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def looped(x):
    return lax.scan(lambda c, row: (jnp.tanh(c + row), c), jnp.zeros(6), x)[0]


@jax.custom_jvp
def looked_up(table):
    """Rows of a table whose first row has no gradient, as embeddings leave out their padding."""
    return jnp.take(table, INDEX[:, 0], 0)


@looked_up.defjvp
def _(primals, tangents):
    return looked_up(*primals), jnp.take(tangents[0].at[0].set(0), INDEX[:, 0], 0)


@jax.custom_jvp
def ordered(x):
    return jnp.sort(x, 0)


ordered.defjvp(lambda primals, tangents: (ordered(*primals), ordered(*tangents)))

POINTWISE = {
    name: getattr(lax, name)
    for name in [
        "abs", "asinh", "atan", "cbrt", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1",
        "logistic", "neg", "sin", "sinh", "square", "stop_gradient", "tan", "tanh",
    ]
}  # fmt: skip
# Functions of positive numbers, away from the pole.
POSITIVE = {
    fn.__name__: lambda x, fn=fn: fn(x * x + 1)
    for fn in (lax.log, lax.log1p, lax.sqrt, lax.rsqrt, lax.lgamma, lax.digamma, lax.reciprocal)
}
ARITHMETIC = {
    "add": lambda x: lax.add(x, x[::-1]),
    "sub": lambda x: x - 1.0,
    "mul": lambda x: lax.mul(x, x[::-1]),
    "div": lambda x: x / jnp.arange(1.0, 7),
    "max": lambda x: lax.max(x, x[::-1]),
    "min": lambda x: lax.min(x, 0.1),
    "clamp": lambda x: lax.clamp(-1.0, x, 1.0),
    "pow": lambda x: lax.pow(jnp.exp(x), jnp.float32(1.5)),
    "integer_pow": lambda x: lax.integer_pow(x, 3),
    "integer_pow, negative": lambda x: lax.integer_pow(x + 9, -2),
    "select_n": lambda x: jnp.where(jnp.arange(6) > 2, x, 0.0),
    "select_n, infinite": lambda x: jax.nn.softmax(jnp.where(jnp.arange(6) > 2, x, -jnp.inf)),
    "logaddexp": lambda x: jnp.logaddexp(x, 0.0),
    "convert_element_type": lambda x: x.astype(jnp.bfloat16).astype(jnp.float32),
    "reduce_precision": lambda x: lax.reduce_precision(x, 8, 7),
    "argmax": lambda x: jnp.argmax(x, -1),
    "is_finite": jnp.isfinite,
}
MOVING = {
    "broadcast_in_dim": lambda x: jnp.broadcast_to(x, (2, 4, 6)),
    "concatenate": lambda x: jnp.concatenate([x, 2 * x], -1),
    "pad": lambda x: jnp.pad(x, 1),
    "rev": lambda x: x[::-1],
    "reshape": lambda x: x.reshape(2, 12),
    "slice": lambda x: x[1:, ::2],
    "split": lambda x: jnp.split(x, 2, -1)[1],
    "squeeze": lambda x: x[:1].squeeze(0),
    "transpose": lambda x: x.T,
    "tile": lambda x: jnp.tile(x, (2, 1)),
    "gather": lambda x: x[INDEX[:, 0]],
    "gather with a gradient of its own": looked_up,
    "custom_jvp_call": ordered,
    "dynamic_slice": lambda x: lax.dynamic_slice(x, (1, 0), (2, 6)),
    "dynamic_update_slice": lambda x: lax.dynamic_update_slice(jnp.zeros((8, 6)), x, (2, 0)),
    "scatter": lambda x: jnp.zeros((8, 6)).at[SEGMENTS + 4 * jnp.arange(4) % 8].set(x),
    "scatter_add": lambda x: jax.ops.segment_sum(x, SEGMENTS, 3),
    "scatter_max": lambda x: jax.ops.segment_max(x, SEGMENTS, 3),
    "scatter_min": lambda x: jax.ops.segment_min(x, SEGMENTS, 3),
    "scatter_mul": lambda x: jax.ops.segment_prod(x, SEGMENTS, 3),
}
REDUCING = {
    "reduce_sum": lambda x: x.sum(-1),
    "reduce_max": lambda x: x.max(-1),
    "reduce_min": lambda x: x.min(-1),
    "reduce_prod": lambda x: x.prod(-1),
    "cumsum": lambda x: jnp.cumsum(x, -1),
    "cumsum of rectified": lambda x: jnp.cumsum(jax.nn.relu(x), -1),
    "cumprod": lambda x: jnp.cumprod(x, -1),
    "cummax": lambda x: lax.cummax(x, 1),
    "cumlogsumexp": lambda x: lax.cumlogsumexp(x, 1),
    "dot_general": lambda x: x @ jnp.ones((6, 2)),
    "dot_general, of itself": lambda x: x @ x.T,
    "logsumexp": lambda x: jax.nn.logsumexp(x, -1),
    "sort": lambda x: jnp.sort(x, -1),
    "top_k": lambda x: lax.top_k(x, 2)[0],
    "fft": lambda x: jnp.abs(jnp.fft.rfft(x)),
}
LOOPS = {
    "scan": looped,
    "associative_scan": lambda x: lax.associative_scan(jnp.add, x),
    "while": lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + x[i], x[0]),
    "while, random": lambda x: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + x**2, x),
    "cond": lambda x: lax.cond(jnp.bool_(True), jnp.sin, jnp.cos, x),
    "cond, random": lambda x: lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x),
    "checkpoint": jax.checkpoint(jnp.sin),
    "custom_jvp": jax.nn.silu,
    "custom_vjp": jax.nn.gelu,
}
IMAGES = {
    "conv_general_dilated": lambda x: lax.conv_general_dilated(
        x, KERNEL, (2, 2), "SAME", dimension_numbers=NHWC
    ),
    "conv_transpose": lambda x: lax.conv_transpose(x, KERNEL, (2, 2), "SAME"),
    "depthwise": lambda x: lax.conv_general_dilated(
        x, KERNEL[:, :, :1, :3], (1, 1), "SAME", dimension_numbers=NHWC, feature_group_count=3
    ),
    "reduce_window_max": windows(lax.max, -jnp.inf),
    "reduce_window_min": windows(lax.min, jnp.inf),
    "reduce_window_sum": windows(lax.add, 0.0),
    "resize": lambda x: jax.image.resize(x, (2, 12, 12, 3), "nearest"),
    "resize, linear": lambda x: jax.image.resize(x, (2, 12, 12, 3), "linear"),
}
TABLES = (POINTWISE, POSITIVE, ARITHMETIC, MOVING, REDUCING, LOOPS)
CASES = {name: (f, X) for table in TABLES for name, f in table.items()}
CASES |= {name: (f, IMAGE) for name, f in IMAGES.items()}

# Refused, and how the message names what is refused.
REFUSED = {
    "scatter_mul": "'scatter-mul'.*has no moment rule.*rules={primitive: rule}",
    "custom_jvp_call": "'custom_jvp_call'.*gradient of its own that does more than move entries",
    "fft": "'fft'.*has a complex result.*take method='linear'",
    **{
        name: f"'{name}'.*has no moment rule.*rules={{primitive: rule}}"
        for name in ["reduce_prod", "cumprod", "cummax", "cumlogsumexp", "sort", "top_k"]
    },
    **dict.fromkeys(
        ("while, random", "cond, random"), "control flow.*decided by a random value.*Decide it on"
    ),
}


def variants(x):
    """Moments as they come, certain ones, ten times as much of everything, and means of zero."""
    weights = [x, Gaussian(x.mean, 0 * x.var), Gaussian(3 * x.mean, 9 * x.var)]
    weights.append(Gaussian(0 * x.mean, x.var))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_moments_are_finite_or_refused_by_name(name):
    f, x = CASES[name]
    if name in REFUSED:
        with pytest.raises(MomentsError, match=REFUSED[name]):
            jax.eval_shape(moments(f, method="diagonal"), x)
        return
    for leaf in jax.tree.leaves(jax.jit(jax.vmap(moments(f, method="diagonal")))(variants(x))):
        assert np.isfinite(leaf).all()


def test_moments_of_entries_that_a_function_moves_keep_its_gradient():
    """Rows of a table are as they were, mean and variance, and its first row stays untouched."""
    y = moments(looked_up, method="diagonal")(X)
    np.testing.assert_array_equal(y.mean, X.mean[INDEX[:, 0]])
    np.testing.assert_array_equal(y.var, X.var[INDEX[:, 0]])
    slopes = jax.grad(lambda x: jnp.sum(moments(looked_up, method="diagonal")(x).mean ** 2))(X).mean
    assert not slopes[0].any()
    assert slopes[3].all()
