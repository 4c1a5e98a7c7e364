"""Attention as one rule: how it is recognised, and its moments against Monte Carlo."""

import functools
import warnings

import flax.linen as linen
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxeff
from jaxeff.moment_propagation import Gaussian, MomentsWarning, assumptions, moments
from jaxeff.moment_propagation._attention import AxisLetters, attention

CAUSAL = jnp.tril(jnp.ones((5, 5), bool))
HEAD = AxisLetters("id", "jd", "je", "ij", "ie", "j")


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def random(seed, *shape, std=0.1):
    return Gaussian(normal(seed, *shape), jnp.full(shape, std**2))


def heads(groups=2, std=0.1):
    """Queries, keys and values `[batch, tokens, heads, features]`, keys of `groups` heads."""
    shapes = (2, 5, 4, 3), (2, 5, groups, 3), (2, 5, groups, 3)
    return [random(i, *shape, std=std) for i, shape in enumerate(shapes)]


def by_hand(q, k, v, mask=lambda s: s):
    """Attention `[batch, heads, tokens, features]`, one operation after the other."""
    s = mask(q @ k.mT / q.shape[-1] ** 0.5)
    p = jnp.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def shared(q, k, v):
    """Grouped queries by `einsum`, heads and tokens as they come."""
    q = q.reshape(2, 5, k.shape[2], -1, 3)
    p = jax.nn.softmax(jnp.einsum("btkgd,bskd->bkgts", q, k) / 3**0.5)
    return jnp.einsum("bkgts,bskd->btkgd", p, v).reshape(2, 5, 4, 3)


def merged(q, k, v):
    """Grouped queries whose scores have one axis of heads under the mask and the softmax."""
    s = jnp.einsum("btkgd,bskd->bkgts", q.reshape(2, 5, k.shape[2], -1, 3), k) / 3**0.5
    p = jax.nn.softmax(jnp.where(CAUSAL[None, None], s.reshape(2, 4, 5, 5), -1e9))
    p = p.reshape(2, k.shape[2], -1, 5, 5)
    return jnp.einsum("bkgts,bskd->btkgd", p, v).reshape(2, 5, 4, 3)


def repeated(q, k, v):
    k, v = (jnp.repeat(x, 4 // x.shape[2], 2) for x in (k, v))
    p = jax.nn.softmax(jnp.einsum("btnd,bsnd->bnts", q, k) / 3**0.5)
    return jnp.einsum("bnts,bsnd->btnd", p, v)


def in_front(q, k, v, **mask):
    """Heads in front of tokens."""
    q, k, v = (jnp.moveaxis(jnp.repeat(x, 4 // x.shape[2], 2), 2, 1) for x in (q, k, v))
    return jnp.moveaxis(by_hand(q, k, v, **mask), 1, 2)


def vmapped(q, k, v):
    k, v = (jnp.repeat(x, 4 // x.shape[2], 2) for x in (k, v))
    return jax.vmap(jax.vmap(by_hand), 2, 2)(q, k, v)


def one_sequence(q, k, v):
    """The first sequence alone, `[heads, tokens, features]`, under a mask with an axis more."""
    q, k, v = (jnp.moveaxis(jnp.repeat(x[0], 4 // x.shape[2], 1), 1, 0) for x in (q, k, v))
    return by_hand(q, k, v, mask=lambda s: s + jnp.where(CAUSAL, 0, -1e9)[None, None])


FORMS = {
    "one axis of heads for the softmax": merged,
    "jax": jax.nn.dot_product_attention,
    "jax, causal": lambda *qkv: jax.nn.dot_product_attention(*qkv, is_causal=True),
    "jax, mask": lambda *qkv: jax.nn.dot_product_attention(*qkv, mask=CAUSAL[None, None]),
    "jax, bias": lambda *qkv: jax.nn.dot_product_attention(*qkv, bias=normal(9, 1, 4, 5, 5)),
    "einsum": shared,
    "repeated keys": repeated,
    "heads in front": in_front,
    "where, -inf": lambda *qkv: in_front(*qkv, mask=lambda s: jnp.where(CAUSAL, s, -jnp.inf)),
    "added, -1e9": lambda *qkv: in_front(*qkv, mask=lambda s: s + jnp.where(CAUSAL, 0, -1e9)),
    "capped": lambda *qkv: in_front(*qkv, mask=lambda s: 2 * jnp.tanh(s / 2)),
    "vmapped": vmapped,
    "one sequence": one_sequence,
}


def linearized(f, *args):
    """First-order variances, by the derivatives by all random entries."""
    at = [x.mean for x in args]
    slopes = jax.jacobian(lambda at: f(*at))(at)
    return sum(
        (s**2 * x.var).sum(tuple(range(s.ndim - x.mean.ndim, s.ndim)))
        for s, x in zip(slopes, args, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_attention_is_exact_to_first_order_however_it_is_written(name):
    """Noise of 1e-3: what the second order adds is below 1e-4 of the variance."""
    args = heads(std=1e-3)
    y = jax.jit(moments(FORMS[name], method="diagonal"))(*args)
    expected = jax.jit(lambda *args: linearized(FORMS[name], *args))(*args)
    np.testing.assert_allclose(y.mean, FORMS[name](*[x.mean for x in args]), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(y.var, expected, rtol=2e-3, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("only", [0, 1, 2])
def test_what_is_certain_adds_nothing(only):
    args = [x if i == only else x.mean for i, x in enumerate(heads(std=1e-3))]
    x = args[only]

    def f(x):
        return shared(*args[:only], x, *args[only + 1 :])

    y = jax.jit(moments(f, method="diagonal"))(x)
    np.testing.assert_allclose(y.var, linearized(f, x), rtol=2e-3, atol=1e-12)


def rope(x):
    turn = jnp.arange(5.0)[:, None, None]
    return x * jnp.cos(turn) + jnp.roll(x, 1, -1) * jnp.sin(turn)


@pytest.mark.slow
def test_rotary_positions_and_a_cache_only_feed_queries_and_keys():
    q, k, v = heads()
    new = random(5, 2, 2, 2, 3)

    def f(q, k, v, new):
        k, v = (jax.lax.dynamic_update_slice(x, new, (0, 3, 0, 0)) for x in (rope(k), v))
        return repeated(rope(q), k, v)

    given = [moments(rope, method="diagonal")(q), moments(rope, method="diagonal")(k), v]
    for i in (1, 2):
        parts = zip(jax.tree.leaves(given[i]), jax.tree.leaves(new), strict=True)
        given[i] = Gaussian(*(x.at[:, 3:].set(y) for x, y in parts))
    y, expected = (
        jax.jit(moments(f, method="diagonal"))(q, k, v, new),
        jax.jit(moments(repeated, method="diagonal"))(*given),
    )
    np.testing.assert_allclose(y.mean, expected.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(y.var, expected.var, rtol=1e-5)


def test_a_random_bias_that_all_sequences_share_is_recognised():
    def f(q, k, v, bias, repeat=jnp.broadcast_to):
        return in_front(q, k, v, mask=lambda s: jax.lax.add(s, repeat(bias, s.shape)))

    args = [*heads(std=1e-3), random(9, 1, 4, 5, 5, std=1e-3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # One equation, as PyTorch's programs have it: no broadcast of its own.
        y = jax.jit(moments(functools.partial(f, repeat=lambda bias, _: bias), method="diagonal"))(
            *args
        )
        expected = jax.jit(moments(f, method="diagonal"))(*args)
    np.testing.assert_allclose(y.var, expected.var, rtol=1e-5)


@pytest.mark.oracle
@pytest.mark.parametrize("case", ["one shift dominates", "all noisy"])
def test_noise_that_a_row_of_scores_shares_cancels(case, oracle):
    """Scores taken as independent give 18 and 2 times the variance and more."""
    q, k, v = (normal(i, 16, 8) for i in range(3))
    std = 0.3
    if case == "one shift dominates":
        args = Gaussian(q, jnp.full(q.shape, std**2)), k + 5 * normal(7, 8), v
    else:
        args = tuple(Gaussian(a, jnp.full(a.shape, std**2)) for a in (q, k, v))
    samples = oracle.monte_carlo(by_hand, args, 20_000, 1_000)
    ratio = np.asarray(jax.jit(moments(by_hand, method="diagonal"))(*args).var) / samples.var
    # A variance of 20,000 samples has a standard error of 1 %.
    assert 0.95 < np.median(ratio) < 1.05
    low, high = np.quantile(ratio, [0.05, 0.95])
    assert 0.85 < low < high < 1.15


def test_probes_estimate_the_queries_part_without_bias():
    """64 keys, features and values: too many products; entries are off by 50 %, their mean by 5."""
    q, k, v = (normal(i, 64, 64) for i in range(3))
    s = q @ k.T / 8
    var = jnp.full((64, 64), 1e-4)
    given = {"scores": s, "v": v, "q": q, "k": k, "slope": jnp.full_like(s, 1 / 8), "q_var": var}
    ours = np.asarray(jax.jit(lambda given: attention(HEAD, given))(given).var)
    p = jax.nn.softmax(s)
    apart = v[None] - (p @ v)[:, None]
    slopes = jnp.einsum("ij,jd,ije->ide", p / 8, k, apart)
    ratio = ours / np.asarray(jnp.einsum("id,ide->ie", var, slopes**2))
    assert abs(ratio.mean() - 1) < 0.05
    assert 0.3 < ratio.std() < 0.7


def test_the_short_form_is_right_on_average():
    """Noise of queries counts as if each score had its own: entries are off, all of them aren't."""
    q, k, v = (normal(i, 32, 8) for i in range(3))
    s, var = q @ k.T / 8**0.5, jnp.full((32, 8), 1e-4)
    inputs = {"scores": s, "v": v, "q": q, "k": k, "slope": jnp.full_like(s, 8**-0.5)}
    inputs |= {f"{name}_var": var for name in "qkv"}
    form = lambda short: jax.jit(lambda inputs: attention(HEAD, inputs, short=short))(inputs)  # noqa: E731
    exact, short = form(False), form(True)
    np.testing.assert_allclose(short.mean, exact.mean, atol=1e-3)
    ratio = np.asarray(short.var / exact.var)
    assert abs(ratio.mean() - 1) < 0.05
    assert 0.05 < ratio.std() < 0.3  # what is shared by a row isn't followed


@pytest.mark.slow
def test_transforms_of_a_layer_of_attention():
    args = heads()
    y = jax.jit(moments(shared, method="diagonal"))(*args)
    scanned = moments(
        lambda *qkv: jax.lax.scan(lambda c, _: (c, shared(*qkv)), 0.0, None, 1)[1][0],
        method="diagonal",
    )
    for other in (moments(jax.remat(shared), method="diagonal"), scanned):
        other = jax.jit(other)(*args)
        np.testing.assert_allclose(other.mean, y.mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(other.var, y.var, rtol=1e-4, atol=1e-8)
    certain = [Gaussian(x.mean, jnp.zeros_like(x.var)) for x in args]
    g = moments(shared, method="diagonal")
    loss = lambda args: sum(a.sum() for a in jax.tree.leaves(g(*args)))  # noqa: E731
    value, slopes = jax.jit(jax.value_and_grad(loss))(certain)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((value, slopes)))
    np.testing.assert_array_equal(jax.jit(moments(shared, method="diagonal"))(*certain).var, 0)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["nnx", "linen"])
def test_layers_of_flax_are_recognised(library):
    x = normal(0, 2, 5, 8)
    if library == "nnx":
        f, params = jaxeff.functional(nnx.MultiHeadAttention(2, 8, decode=False, rngs=nnx.Rngs(0)))
    else:
        layer = linen.MultiHeadDotProductAttention(num_heads=2)
        f, params = layer.apply, layer.init(jax.random.key(0), x)
    posterior = jax.tree.map(lambda w: Gaussian(w, jnp.full(w.shape, 1e-4)), params)
    places = assumptions(f, posterior, x)
    # The softmax is no place any more; that queries, keys and values share weights is one.
    assert any("dot_general" in str(place) for place in places)
    assert jnp.isfinite(jax.jit(moments(f, method="diagonal"))(posterior, x).var).all()


def test_attention_keeps_its_mean_and_has_a_variance():
    q, k, v = (random(i, 4, 3, std=1e-3) for i in range(3))
    y, var = jax.jit(
        lambda *qkv: (moments(by_hand, method="diagonal")(*qkv), linearized(by_hand, *qkv))
    )(q, k, v)
    np.testing.assert_allclose(y.mean, by_hand(q.mean, k.mean, v.mean), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(y.var, var, rtol=2e-3, atol=1e-12)


def test_a_softmax_that_is_not_recognised_is_named():
    def scaled(x, v):
        return jax.nn.softmax(x["q"] @ x["k"].T * x["temperature"]) @ v

    x = {"q": random(0, 4, 3), "k": random(1, 4, 3), "temperature": random(2)}
    places = assumptions(scaled, x, random(3, 4, 3))
    assert any("temperature" in one.shares and one.adds_up for one in places)
    assert not assumptions(
        lambda x, v: jax.nn.softmax(x["q"] @ x["k"].T) @ v,
        x | {"temperature": 1.0},
        random(3, 4, 3),
    )


def test_an_export_keeps_attention_as_one_composite():
    args = heads()
    leaves, structure = jax.tree.flatten(args)

    def flat(*leaves):
        return jax.tree.leaves(moments(shared, method="diagonal")(*structure.unflatten(leaves)))

    text = jax.export.export(jax.jit(flat), platforms=["cpu"])(*leaves).mlir_module()
    assert text.count('stablehlo.composite "jaxeff.pfp_attention"') == 1
    assert 'operands = "scores slope v v_var q q_var k k_var"' in text


def blocks(params, x, cast=False):
    """Two blocks: attention and a dense layer."""
    for block in params["blocks"]:
        q, k, v = (x @ block[name] for name in "qkv")
        expected = by_hand(q, k, v) @ block["out"]
        x = x + expected if not cast else (2.0 * x).astype(expected.dtype) + expected
        x = x + jnp.tanh(x @ block["dense"])
    return x @ params["head"]


def scanned_blocks(params, x):
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params["blocks"])
    one = lambda x, block: (blocks({"blocks": [block], "head": jnp.eye(4)}, x), None)  # noqa: E731
    return jax.lax.scan(one, x, stacked)[0] @ params["head"]


def posterior_of_blocks(*names):
    """A posterior of the leaves of these names; the others are certain."""
    arrays = [
        {name: normal(i, 4, 4) / 2 for i, name in enumerate([*"qkv", "out", "dense"], start)}
        for start in (0, 9)
    ]
    params = {"blocks": arrays, "head": normal(8, 4, 3)}

    def given(path, w):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return Gaussian(w, jnp.full(w.shape, 1e-4)) if name.endswith(names) else w

    return jax.tree_util.tree_map_with_path(given, params)


@pytest.mark.slow
@pytest.mark.parametrize("f", [blocks, functools.partial(blocks, cast=True), scanned_blocks])
def test_attention_with_random_weights_in_a_residual_stream_is_named(f):
    x, all_at_once = normal(20, 2, 5, 4), posterior_of_blocks("")
    many = lambda params, x: jnp.tile(f(params, x), 5)  # noqa: E731
    # One block is enough, the first or the last.
    for name in ("0/q", "1/k"):
        places = assumptions(f, posterior_of_blocks(name), x)
        assert any(one.adds_up and f"blocks/{name}" in one.shares for one in places)
        with pytest.warns(MomentsWarning, match=f"of .*blocks/{name}"):
            jax.eval_shape(moments(many), posterior_of_blocks(name), x)
    noisy = posterior_of_blocks("nothing"), Gaussian(x, 0.01 * x**2)
    for given in ((all_at_once, x), noisy):
        with pytest.warns(MomentsWarning, match=r"moments_check.*method='linear'") as caught:
            jax.eval_shape(moments(many), *given)
        assert len([w for w in caught if w.category is MomentsWarning]) == 1
    assert moments(f).explain(all_at_once, x).method == "linear"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(moments(f), all_at_once, x)
        jax.eval_shape(moments(many, method="diagonal"), all_at_once, x)
        jax.eval_shape(moments(many), posterior_of_blocks("head"), x)
        if f is not scanned_blocks:  # whose state has the last block's noise at each step
            jax.eval_shape(moments(many), posterior_of_blocks("1/dense", "head"), x)


def pooled_tokens(params, x):
    """One block of attention and a mean over tokens, behind a function that keeps them."""
    block = params["blocks"][0]
    q, k, v = (x @ block[name] for name in "qkv")
    return jnp.tanh(by_hand(q, k, v) @ block["out"]).mean(1) @ params["head"]


@pytest.mark.slow
def test_attention_with_random_weights_before_a_mean_over_tokens_is_named():
    x, noise = normal(20, 2, 5, 4), jnp.full((2, 5, 4), 1e-4)
    many = lambda params, x: jnp.tile(pooled_tokens(params, x), 25)  # noqa: E731
    given = [(posterior_of_blocks(name), x) for name in ("0/q", "out")]
    for args in (*given, (posterior_of_blocks("no leaf"), Gaussian(x, noise))):
        places = assumptions(pooled_tokens, *args)
        assert any(one.adds_up and one.site == "mean" for one in places)
        with pytest.warns(MomentsWarning, match="share noise"):
            jax.eval_shape(moments(many), *args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(moments(pooled_tokens), *given[0])  # few results, by the linear method
        jax.eval_shape(moments(many, method="diagonal"), *given[0])
        jax.eval_shape(moments(many), posterior_of_blocks("head"), x)


def pooled_by_a_query(params, x):
    """Tokens weighed by one learnt query."""
    k, v = x @ params["k"], x @ params["v"]
    weights = jax.nn.softmax(jnp.einsum("d,btd->bt", params["q"], k) / 2, -1)
    return jnp.einsum("bt,btc->bc", weights, v)


@pytest.mark.parametrize("values", ["random", "certain"])
def test_attention_of_one_query_over_what_random_weights_make_is_named(values):
    x = normal(20, 2, 5, 4)
    params = {"k": normal(0, 4, 4), "v": normal(1, 4, 4), "q": normal(2, 4)}
    names = "kvq" if values == "random" else "q"
    weights = {
        n: Gaussian(w, jnp.full_like(w, 0.01)) if n in names else w for n, w in params.items()
    }
    places = assumptions(pooled_by_a_query, weights, x)
    assert any(one.adds_up for one in places) == (values == "random")
