"""`moments(f, method="linear")` is the first-order formula, for whatever a function is made of."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxeff.moment_propagation import Gaussian, is_gaussian, moments


def draw(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape) / max(shape[0] if shape else 1, 1) ** 0.5


def dense(p, x):
    return jnp.tanh(x @ p["a"] + p["b"]) @ p["c"]


def tokens(p, x):
    x = jnp.tanh(x @ p["a"] + p["b"])
    x = x + jnp.einsum("btd,ts->bsd", x, p["mix"])
    return (x * p["scale"]).mean(1) @ p["c"]


def convolved(settings, p, x):
    y = lax.conv_general_dilated(x, p["k"], dimension_numbers=("NHWC", "HWIO", "NHWC"), **settings)
    y = jnp.tanh(y + p["b"])
    return jnp.einsum("bhwc,ck->bk", y, p["c"])


def convolution(groups=1, out=4, **settings):
    settings = {
        "window_strides": (1, 1),
        "padding": "SAME",
        "feature_group_count": groups,
    } | settings
    params = {"k": draw(1, 3, 2, 4 // groups, out), "b": draw(2, out), "c": draw(3, out, 3)}
    return functools.partial(convolved, settings), params, draw(4, 3, 5, 6, 4)


def channels_first(p, x):
    y = lax.conv_general_dilated(x, p["k"], (2, 1), "VALID")
    return jnp.tanh(y).sum((2, 3))


def shared(p, x):
    for _ in range(3):
        x = jnp.tanh(x @ p["a"] + p["b"])
    return x @ p["c"]


def tied(p, x):
    return jnp.tanh(jnp.tanh(x @ p["a"]) @ p["a"].T)


def recurrent(p, x):
    def step(h, x_t):
        return jnp.tanh(x_t @ p["a"] + h @ p["h"] + p["b"]), h.sum(-1)

    h, sums = lax.scan(step, jnp.zeros((len(x), 5)), x.swapaxes(0, 1))
    return {"last": h @ p["c"], "sums": sums.T}


def stacked(p, x):
    """Layers in a scan: a row of each array for every step."""
    return (
        lax.scan(lambda x, q: (jnp.tanh(x @ q["a"].T + q["b"]), None), x, p["layers"])[0] @ p["c"]
    )


def learnt_start(p, x):
    def step(carry, x_t):
        h, w = carry
        return (jnp.tanh(x_t @ p["a"] + h @ w), w * p["decay"]), None

    start = jnp.broadcast_to(p["start"], (len(x), 5)), p["h"]
    return lax.scan(step, start, x.swapaxes(0, 1), reverse=True)[0][0]


def attention(p, x):
    q, k, v = (jnp.einsum("btd,dhe->bhte", x, p[n]) for n in "qkv")
    a = jax.nn.softmax(q @ k.mT / 2)
    x = x + jnp.einsum("bhte,hed->btd", a @ v, p["o"])
    return x[:, 0] @ p["c"]


def layer_norm(p, x):
    x = x @ p["a"]
    x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-3)
    return jnp.tanh(x * p["scale"] + p["b"]) @ p["c"]


def batch_norm(p, x):
    x = x @ p["a"]
    x = (x - x.mean(0)) * lax.rsqrt(x.var(0) + 1e-3) * p["scale"] + p["b"]
    return jnp.tanh(x)


def embedding(p, x):
    e = p["e"][x] + p["position"]
    return jnp.tanh(e @ p["a"]).mean(1) @ p["c"]


def tied_embedding(p, x):
    return (jnp.tanh(p["e"][x] @ p["a"]) @ p["e"].T)[:, -1]


def class_token(p, x):
    token = jnp.broadcast_to(p["token"], (len(x), 1, x.shape[-1]))
    x = jnp.concatenate([token, x], axis=1) + p["position"]
    return attention(p, x)


def bilinear(p, x):
    return jnp.einsum("bi,kij,bj->bk", x, p["w"], jnp.tanh(x @ p["a"]))


def low_rank(p, x):
    return jnp.tanh(x @ (p["u"] @ p["v"])) @ p["c"]


def masked(p, x):
    mask = np.arange(24).reshape(6, 4) % 3 > 0
    a = jnp.where(mask, p["a"], 0) * 2
    return jnp.tanh(x @ a.astype(x.dtype)) @ jnp.tanh(p["c"])[:, ::-1]


def normalized_weights(p, x):
    return jnp.tanh(x @ (p["a"] / jnp.linalg.norm(p["a"], axis=0))) @ p["c"]


@jax.custom_jvp
def cube(x, w):
    return x**3 * w


@cube.defjvp
def _cube_jvp(at, steps):
    (x, w), (dx, dw) = at, steps
    return cube(x, w), 3 * x**2 * w * dx + 2 * x**3 * dw


@jax.custom_vjp
def halved(x, w):
    return x + w


halved.defvjp(lambda x, w: (x + w[None, None], None), lambda _, g: (g / 2, g.sum((0, 1)) / 3))


def custom_jvp(p, x):
    return cube(x @ p["a"], jnp.broadcast_to(p["b"], (len(x), 4)))


def custom_vjp(p, x):
    return halved(x @ p["a"], p["b"]).mean(1)


def conditional(p, x):
    return lax.cond(
        p["a"].sum() > 99, lambda x: x @ p["a"], lambda x: x @ p["c"] * p["b"], jnp.tanh(x)
    )


def remat(p, x):
    return jax.checkpoint(dense)(p, x) ** 2


def named_size(p, x):
    """Caches of a batch whose size is known, as grouped attention makes them."""
    q = (x @ p["q"]).reshape(3, 5, 2, 2, 3)
    k, v = ((x @ p[n]).reshape(3, 5, 2, 3) for n in "kv")
    cache = jnp.zeros((3, 8, 2, 3), x.dtype)
    k, v = (lax.dynamic_update_slice(cache, a, (0, 0, 0, 0)) for a in (k, v))
    a = jax.nn.softmax(jnp.einsum("btghe,bsge->bghts", q, k))
    return jnp.einsum("bghts,bsge->btghe", a, v).reshape(3, 5, 12)[:, -1] @ p["o"]


def several(p, x):
    y = dense(p, x)
    return {
        "y": y,
        "class": y.argmax(-1),
        "none": x.sum(-1),
        "weight": (p["a"] ** 2).sum(),
        "sum": y.sum(),
    }


def polynomial(p, x):
    return p["s"] * x**2 + p["t"] * x + p["s"] * p["t"]


def sorted_(p, x):
    return jnp.sort(x @ p["a"], axis=-1)[:, :3] * lax.top_k(x * p["b"], 3)[0]


def transposed_first(p, x):
    return jnp.einsum("io,bti->otb", p["a"], jnp.sin(x)).sum(1).T


def pooled(p, x):
    x = jnp.tanh(x @ p["a"])
    most = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 1), (1, 2, 1), "VALID")
    return (most + lax.reduce_window(x, 0.0, lax.add, (1, 2, 1), (1, 2, 1), "VALID")).sum(1)


X, TEXT = draw(0, 3, 6), np.array([[1, 2, 1, 7], [0, 0, 3, 2], [7, 7, 7, 7]])
LONG = draw(0, 3, 5, 6)
HEADS = {n: draw(i, 6, 2, 3) for i, n in enumerate("qkv")} | {
    "o": draw(4, 2, 3, 6),
    "c": draw(5, 6, 3),
}
FLAT = {"a": draw(1, 6, 4), "b": draw(2, 4), "c": draw(3, 4, 3)}
PROGRAMS = {
    "dense": (dense, FLAT, X),
    "tokens": (tokens, FLAT | {"mix": draw(4, 5, 5), "scale": draw(5, 4)}, LONG),
    "convolution": convolution(),
    "strided": convolution(window_strides=(2, 3), padding=((1, 2), (0, 1))),
    "groups": convolution(groups=2, out=6),
    "depthwise": convolution(groups=4, out=8),
    "dilated": convolution(rhs_dilation=(2, 1)),
    "transposed": convolution(lhs_dilation=(2, 2), padding=((2, 2), (1, 1))),
    "channels first": (channels_first, {"k": draw(1, 4, 2, 2, 3)}, draw(2, 3, 2, 5, 6)),
    "shared": (shared, {"a": draw(1, 6, 6), "b": draw(2, 6), "c": draw(3, 6, 2)}, X),
    "tied": (tied, {"a": draw(1, 6, 4)}, X),
    "recurrent": (
        recurrent,
        {"a": draw(1, 6, 5), "h": draw(2, 5, 5), "b": draw(3, 5), "c": draw(4, 5, 2)},
        LONG,
    ),
    "stacked": (
        stacked,
        {"layers": {"a": draw(1, 3, 6, 6), "b": draw(2, 3, 6)}, "c": draw(3, 6, 2)},
        LONG,
    ),
    "learnt start": (
        learnt_start,
        {"a": draw(1, 6, 5), "h": draw(2, 5, 5), "start": draw(3, 5), "decay": draw(4)},
        LONG,
    ),
    "attention": (attention, HEADS, LONG),
    "layer norm": (layer_norm, FLAT | {"scale": draw(4, 4)}, X),
    "batch norm": (batch_norm, FLAT | {"scale": draw(4, 4)}, X),
    "embedding": (embedding, {"e": draw(1, 9, 6), "position": draw(2, 4, 6)} | FLAT, TEXT),
    "tied embedding": (tied_embedding, {"e": draw(1, 9, 6), "a": draw(2, 6, 6)}, TEXT),
    "class token": (class_token, HEADS | {"token": draw(6, 1, 6), "position": draw(7, 6, 6)}, LONG),
    "bilinear": (bilinear, {"w": draw(1, 3, 6, 4), "a": draw(2, 6, 4)}, X),
    "low rank": (low_rank, {"u": draw(1, 6, 2), "v": draw(2, 2, 4), "c": draw(3, 4, 3)}, X),
    "masked": (masked, FLAT, X),
    "normalized weights": (normalized_weights, FLAT, X),
    "custom jvp": (custom_jvp, FLAT, X),
    "custom vjp": (custom_vjp, FLAT, LONG),
    "conditional": (conditional, {"a": draw(1, 6, 3), "b": draw(2, 3), "c": draw(3, 6, 3)}, X),
    "remat": (remat, FLAT, X),
    "named size": (
        named_size,
        {"q": draw(1, 6, 12), "k": draw(2, 6, 6), "v": draw(3, 6, 6), "o": draw(4, 12, 2)},
        LONG,
    ),
    "several": (several, FLAT, X),
    "polynomial": (polynomial, {"s": draw(1), "t": draw(2)}, X),
    "sorted": (sorted_, {"a": draw(1, 6, 6), "b": draw(2, 6)}, X),
    "transposed first": (transposed_first, FLAT, LONG),
    "pooled": (pooled, FLAT, draw(0, 3, 6, 6)),
    "dense, noisy input": (dense, FLAT, Gaussian(X, X**2)),
    "attention, noisy input": (attention, HEADS, Gaussian(LONG, LONG**2)),
    "one example": (tokens, FLAT | {"mix": draw(4, 5, 5), "scale": draw(5, 4)}, LONG[:1]),
    "random head alone": (lambda p, x: jnp.tanh(x) @ p["a"], {"a": draw(1, 6, 9)}, X),
    "no data": (lambda p: jnp.tanh(p["a"].T @ p["a"]), {"a": draw(1, 3, 4)}),
}


def first_order(f, *args):
    """Sums squared derivatives, each by every random entry on its own."""
    leaves, structure = jax.tree.flatten(args, is_leaf=is_gaussian)
    at = [x.mean if is_gaussian(x) else x for x in leaves]
    random = [i for i, x in enumerate(leaves) if is_gaussian(x)]

    def results(moved):
        values = list(at)
        for i, x in zip(random, moved, strict=True):
            values[i] = x
        out = jax.tree.leaves(f(*structure.unflatten(values)))
        return [y for y in out if jnp.issubdtype(y.dtype, jnp.floating)]

    slopes = jax.jit(jax.jacrev(results))([at[i] for i in random])
    return [
        sum(
            (s**2 * leaves[i].var).reshape(*s.shape[: s.ndim - jnp.ndim(at[i])], -1).sum(-1)
            for i, s in zip(random, of_result, strict=True)
        )
        for of_result in slopes
    ]


def posterior(params, common):
    """Random arrays: every entry with a variance of its own, or one for an array or a column."""

    def random(path, w):
        seed = sum(map(ord, jax.tree_util.keystr(path)))
        shape = w.shape[1:] if common == "column" and w.ndim > 1 else () if common else w.shape
        return Gaussian(jnp.asarray(w), jnp.asarray(1 + draw(seed, *shape) ** 2))

    return jax.tree_util.tree_map_with_path(random, params)


COMMON = ("dense", "tokens", "groups", "stacked", "attention")
"""Programs that are taken with variances that many entries have, too."""
CASES = [(name, "") for name in PROGRAMS] + [(n, c) for n in COMMON for c in ("array", "column")]


@pytest.mark.parametrize(("name", "common"), CASES)
def test_variances_are_squared_derivatives(name, common):
    f, params, *data = PROGRAMS[name]

    def promoting(*args):
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            return f(*args)

    with jax.enable_x64():
        args = posterior(params, common), *jax.tree.map(jnp.asarray, data)
        # What the method computes promotes nothing, whatever the function does.
        with jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
            out = jax.jit(moments(promoting, method="linear"))(*args)
        ours = [y for y in jax.tree.leaves(out, is_leaf=is_gaussian) if is_gaussian(y)]
        exact = first_order(f, *args)
        assert len(ours) == len(exact)
        for one, var in zip(ours, exact, strict=True):
            assert one.mean.shape == one.var.shape == var.shape
            np.testing.assert_allclose(one.var, var, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_covariances_are_products_of_derivatives():
    f, params, x = PROGRAMS["tokens"]
    weights = posterior(params, "")
    with jax.enable_x64():
        joint = jax.jit(moments(f, method="linear", covariance=True))(weights, x)
        slopes = jax.tree.leaves(jax.jacrev(f)(params, x))
        variances = [g.var for g in jax.tree.leaves(weights, is_leaf=is_gaussian)]
        parts = [
            jnp.einsum("bkn,n,bln->bkl", (flat := s.reshape(*s.shape[:2], -1)), v.ravel(), flat)
            for s, v in zip(slopes, variances, strict=True)
        ]
        np.testing.assert_allclose(joint.cov, sum(parts), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_a_large_array_is_summed_in_parts(monkeypatch):
    """Its gradients don't fit at once: an example and a few inputs after the other."""
    f, params, x = PROGRAMS["convolution"]
    args = posterior(params, ""), x
    at_once = jax.jit(moments(f, method="linear"))(*args).var
    monkeypatch.setattr("jaxeff.moment_propagation.linear._slopes.GRADIENT_ENTRIES", 20)
    parts = jax.jit(moments(f, method="linear"))(*args).var
    np.testing.assert_allclose(parts, at_once, rtol=1e-5)
